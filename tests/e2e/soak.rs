//! Upgrade after upgrade under a container that lives through all of them: nothing of earlier versions is left.

mod clients;
mod left;
mod stretch;

use std::ops::RangeInclusive;
use std::time::Instant;

use anyhow::{Context, ensure};
use instar_api::machine::{EventsRequest, RebootRequest};
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, INSTALLER, ImageUnderTest, MachineConfig, Node,
    OciImage, Outcome, Registry, Scratch, Test, push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::workloads::Life;
use clients::{Clients, HELD, HELD_PORT, Times, probe};
use left::{Left, MEMORY, PROCESSES};
use stretch::{AcrossReboots, Stretch};

const TURNS: usize = 100;
/// Every tenth upgrade fails, every hundredth turn is a reboot.
const ROLLBACK_EACH: usize = 10;
const REBOOT_EACH: usize = 100;
/// The reason of the version that fails.
const FAILURE: &str = "the soak wants it so";

pub(crate) fn tests() -> Vec<Test> {
    tests![leave_nothing_behind]
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Upgrade,
    Rollback,
    Reboot,
}

impl Turn {
    fn of(number: usize) -> Self {
        match number {
            _ if number.is_multiple_of(REBOOT_EACH) => Turn::Reboot,
            _ if number.is_multiple_of(ROLLBACK_EACH) => Turn::Rollback,
            _ => Turn::Upgrade,
        }
    }
}

/// The number of turns: `make soak N=…`, or a hundred.
fn turns() -> anyhow::Result<usize> {
    match std::env::var("INSTAR_SOAK") {
        Ok(text) => text.parse().context("INSTAR_SOAK is no number"),
        Err(_) => Ok(TURNS),
    }
}

/// A node that is upgraded again and again.
struct Soak {
    node: Node,
    registry: Registry,
    scratch: Scratch,
    /// The two versions that take turns, the running one last.
    images: [ImageUnderTest; 2],
    /// The containers, which live for as long as the kernel.
    lives: [Life; 2],
    times: Times,
    across: AcrossReboots,
}

async fn leave_nothing_behind(scratch: Scratch) -> Outcome {
    let mut soak = Soak::begin(scratch).await?;
    let turns = turns()?;
    let mut number = 0;
    while number < turns {
        let last = turns.min(number + REBOOT_EACH);
        soak.stretch(number + 1..=last).await?;
        soak.times.print()?;
        number = last;
    }
    soak.across.judge()
}

impl Soak {
    async fn begin(scratch: Scratch) -> anyhow::Result<Self> {
        let images = [ImageUnderTest::second()?, ImageUnderTest::first()?];
        let registry = Registry::with_both_installers_without_kernel(&scratch)?;
        push_greeter(&registry)?;
        let host = registry.host_for_guest();
        let node = Node::plan(&scratch, &ImageUnderTest::first()?)
            .blank_disk()?
            .forward(GREETER_PORT)
            .forward(HELD_PORT)
            .configure(move |config| with_greeters(config, &host))
            .spec(|spec| spec.without_deadline())
            .boot()
            .await?;
        Self::of(scratch, registry, images, node).await
    }

    async fn of(
        scratch: Scratch,
        registry: Registry,
        images: [ImageUnderTest; 2],
        node: Node,
    ) -> anyhow::Result<Self> {
        node.wait_until_ready(PATIENCE).await?;
        let lives = node
            .wait_until("both containers run", PATIENCE, || lives(&node))
            .await?;
        Ok(Self {
            node,
            registry,
            scratch,
            images,
            lives,
            times: Times::default(),
            across: AcrossReboots::default(),
        })
    }

    /// Runs the turns between two reboots, with clients attached.
    async fn stretch(&mut self, turns: RangeInclusive<usize>) -> Outcome {
        let ends_in_a_reboot = Turn::of(*turns.end()) == Turn::Reboot;
        let last = turns.end() - usize::from(ends_in_a_reboot);
        self.turns_without_a_reboot(*turns.start()..=last).await?;
        if ends_in_a_reboot {
            self.reboot().await.context("the reboot")?;
        }
        Ok(())
    }

    async fn turns_without_a_reboot(&mut self, turns: RangeInclusive<usize>) -> Outcome {
        let mut clients = Clients::attach(&self.node, &self.scratch).await?;
        let mut stretch = Stretch::default();
        for number in turns.clone() {
            let turn = Turn::of(number);
            let done = self.take(turn, number).await;
            done.with_context(|| format!("{turn:?}, {number}"))?;
            clients.have_heard_of(&self.node, number)?;
            self.look(&mut stretch, number, turns.end() - number)
                .await?;
        }
        clients.detach().await?;
        stretch.judge()
    }

    /// Notes all that is left of earlier turns, after some of them.
    async fn look(&mut self, stretch: &mut Stretch, number: usize, before_end: usize) -> Outcome {
        let in_stretch = number % REBOOT_EACH;
        if Stretch::wants(in_stretch, before_end) {
            let left = Left::look(&self.node).await?;
            println!("after {number:2} turns: {left}");
            self.across.note(number, in_stretch, &left);
            stretch.note(in_stretch, before_end, left);
        }
        Ok(())
    }

    async fn take(&mut self, turn: Turn, number: usize) -> Outcome {
        if turn == Turn::Rollback {
            self.roll_back(number).await?;
        } else {
            self.upgrade().await?;
        }
        let lives = lives(&self.node).await?;
        ensure!(lives == self.lives, "{:#?}, and now {lives:#?}", self.lives);
        Greeter::of(&self.node)?.greets()
    }

    async fn upgrade(&mut self) -> Outcome {
        let probe = probe(&self.node).await?;
        let begun = Instant::now();
        upgrade(&self.node, &self.registry, &self.images[0]).await?;
        let to_ready = begun.elapsed();
        self.times.note(&probe.outage(PATIENCE).await?, to_ready);
        self.images.swap(0, 1);
        Ok(())
    }

    /// An image that failed once is not tried again, so each one is new.
    async fn roll_back(&self, number: usize) -> Outcome {
        let image = self.failing_image(&format!("v0.3.{number}"))?;
        let followed = upgrade_and_follow(&self.node, &image, PATIENCE).await?;
        ensure!(
            matches!(&followed.ending, Ending::Failed(why) if why.contains(FAILURE)),
            "{followed:#?}"
        );
        self.node.wait_until_ready(PATIENCE).await?;
        let version = self.node.version().await?.tag;
        ensure!(version == self.images[1].version(), "{version}");
        Ok(())
    }

    fn failing_image(&self, tag: &str) -> anyhow::Result<String> {
        OciImage::read(&ImageUnderTest::second()?.installer())?
            .giving_up(&self.scratch, tag, FAILURE)?
            .first_layer_alone()
            .push(&self.registry, INSTALLER, tag)?;
        Ok(self.registry.installer_for_guest(tag))
    }

    async fn reboot(&mut self) -> Outcome {
        self.reboot_kernel().await?;
        self.node.wait_until_ready(PATIENCE).await?;
        Greeter::of(&self.node)?.greets()?;
        self.lives = lives(&self.node).await?;
        // QEMU boots the kernel that it was given.
        if self.node.version().await?.tag != self.images[1].version() {
            self.images.swap(0, 1);
        }
        Ok(())
    }

    async fn reboot_kernel(&self) -> Outcome {
        let kernel = self.node.kernel_boot_id().await?;
        let mut machine = self.node.machine().await?;
        machine.reboot(RebootRequest::default()).await?;
        let has_rebooted = async || {
            ensure!(self.node.kernel_boot_id().await? != kernel);
            Ok(())
        };
        self.node
            .wait_until("it has rebooted", PATIENCE, has_rebooted)
            .await
    }
}

async fn lives(node: &Node) -> anyhow::Result<[Life; 2]> {
    Ok([Life::of(node, GREETER).await?, Life::of(node, HELD).await?])
}

/// Adds a greeter with the mounts and rights that the test needs, and one for the connection that is held.
fn with_greeters(config: MachineConfig, host: &str) -> MachineConfig {
    let more = format!(
        "security: {{capabilities: {{add: [SYS_PTRACE]}}}}\nmounts:\n  - hostPath: {{source: /proc, destination: /{PROCESSES}}}\n  - hostPath: {{source: /proc/sys/vm, destination: /{MEMORY}, options: [rw]}}\n"
    );
    let image = format!("{host}/greeter:v1");
    let beat = format!("args: [beat, \"{HELD_PORT}\"]\nnetwork: {{mode: host}}\n");
    config
        .install_disk("/dev/vda")
        .registry(host)
        .greeter_at(GREETER, &image, GREETER_PORT, &more)
        .container(HELD, &image, &beat)
}

async fn upgrade(node: &Node, registry: &Registry, image: &ImageUnderTest) -> Outcome {
    let name = registry.installer_for_guest(image.version());
    let mut machine = node.machine().await?;
    let mut events = machine.events(EventsRequest::default()).await?.into_inner();
    node.upgrade(&name).await??;
    let until_it_ends = async { while let Ok(Some(_)) = events.message().await {} };
    tokio::time::timeout(PATIENCE, until_it_ends)
        .await
        .context("the old generation does not end")?;
    node.wait_until_ready(PATIENCE).await?;
    let version = node.version().await?;
    ensure!(version.tag == image.version(), "{version:?}");
    Greeter::of(node)?.greets()
}
