//! Upgrade after upgrade without a reboot: nothing of the versions before is left.

use std::fmt;

use anyhow::{Context, ensure};
use instar_api::machine::EventsRequest;
use instar_tests::{
    GREETER_PORT, Greeter, ImageUnderTest, Machine, MachineConfig, Node, OciImage, Outcome,
    Registry, Scratch, Test, push_greeter, tests,
};

use crate::{PATIENCE, is_one_named};

/// As many as fit in a run of all tests are fewer.
const UPGRADES: usize = 50;
const FEWER_UPGRADES: usize = 30;
/// Upgrades whose ends are compared: the first few, when everything has happened once, and as many of the last.
const EARLY: std::ops::RangeInclusive<usize> = 2..=5;
/// Caches are dropped before memory is counted, but some fill again at once; the best of each few is compared, and a
/// leak of 50 KiB with each of fifty upgrades (of 80 with each of thirty) would cost more than this.
const MEMORY_TOLERANCE_KIB: u64 = 2 << 10;
/// The kernel lets go of removed cgroups in batches: between 7 and 25 of them wait at any time. One that stayed for good
/// with each of fifty upgrades would be 42 more at the end.
const DYING_CGROUPS: u64 = 30;
/// Where the greeter sees the node's processes and the kernel's settings of memory.
const PROCESSES: &str = "host-proc";
const MEMORY: &str = "host-vm";

pub(crate) fn tests() -> Vec<Test> {
    tests![leave_nothing_behind]
}

async fn leave_nothing_behind(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let images = [ImageUnderTest::second()?, ImageUnderTest::first()?];
    for image in &images {
        // Kernel and initramfs are in the second layer: without a reboot nobody wants them, and pulls are the longest part.
        OciImage::read(&image.installer())?
            .first_layer_alone()
            .push(&registry, "instar/installer", image.version())?;
    }
    let host = registry.host_for_guest();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(GREETER_PORT)
        .configure(move |config| with_a_privileged_greeter(config, &host))
        .spec(|spec| spec.without_deadline())
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let kernel = node.kernel_boot_id().await?;

    let (mut early, mut late) = (Vec::new(), Vec::new());
    let upgrades = match is_one_named() {
        true => UPGRADES,
        false => FEWER_UPGRADES,
    };
    let last = upgrades - 3..=upgrades;
    for number in 1..=upgrades {
        let image = images.get((number + 1) % 2).context("two images")?;
        upgrade(&node, &registry, image)
            .await
            .with_context(|| format!("upgrade {number} of {upgrades}"))?;
        if EARLY.contains(&number) || last.contains(&number) {
            let left = Left::look(&node).await?;
            println!("after {number:2} upgrades: {left}");
            if EARLY.contains(&number) {
                early.push(left);
            } else {
                late.push(left);
            }
        }
    }
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    // A descriptor that gets another number while they are walked through is missed: no look says more than there is.
    let most = Counted::most(early.iter().map(|left| left.counted));
    let (early, late) = (Left::least(&early)?, Left::least(&late)?);
    ensure!(
        late.free_kib + MEMORY_TOLERANCE_KIB >= early.free_kib,
        "memory is lost: {early} became {late}"
    );
    ensure!(
        late.dying_cgroups <= early.dying_cgroups + DYING_CGROUPS,
        "cgroups are left: {early} became {late}"
    );
    ensure!(
        late.counted.is_within(most),
        "something is left: {early}, at most {most:?}, became {late}"
    );
    Ok(())
}

/// The greeter, which sees and may do what the test needs.
fn with_a_privileged_greeter(config: MachineConfig, host: &str) -> MachineConfig {
    let mounts = format!(
        "mounts:\n  - hostPath: {{source: /proc, destination: /{PROCESSES}}}\n  - hostPath: {{source: /proc/sys/vm, destination: /{MEMORY}, options: [rw]}}\n"
    );
    config.install_disk("/dev/vda").registry(host).greeter_at(
        "greeter",
        &format!("{host}/greeter:v1"),
        GREETER_PORT,
        &mounts,
    )
}

async fn upgrade(node: &Node, registry: &Registry, image: &ImageUnderTest) -> Outcome {
    let name = registry.image_for_guest(&format!("instar/installer:{}", image.version()));
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

/// What there is of everything that an upgrade could leave behind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    free_kib: u64,
    dying_cgroups: u64,
    counted: Counted,
}

/// What may not grow, not by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Counted {
    mounts: usize,
    mounts_of_init: usize,
    loops: usize,
    descriptors: usize,
    descriptors_of_init: usize,
    processes: usize,
    cgroups: u64,
}

impl Counted {
    fn most(some: impl Iterator<Item = Self>) -> Self {
        let larger = |one: Self, other: Self| Self {
            mounts: one.mounts.max(other.mounts),
            mounts_of_init: one.mounts_of_init.max(other.mounts_of_init),
            loops: one.loops.max(other.loops),
            descriptors: one.descriptors.max(other.descriptors),
            descriptors_of_init: one.descriptors_of_init.max(other.descriptors_of_init),
            processes: one.processes.max(other.processes),
            cgroups: one.cgroups.max(other.cgroups),
        };
        some.fold(Self::default(), larger)
    }

    fn is_within(self, most: Self) -> bool {
        Self::most([self, most].into_iter()) == most
    }
}

impl Left {
    async fn look(node: &Node) -> anyhow::Result<Self> {
        // What is in caches is not lost.
        Greeter::of(node)?.get(&format!("/write/{MEMORY}/drop_caches?3"))?;
        let mut machine = node.machine().await?;
        let lines = async |path: &str| anyhow::Ok(node.read(path).await?.lines().count());
        let cgroups = node.read("/sys/fs/cgroup/cgroup.stat").await?;
        Ok(Self {
            free_kib: free_kib(node).await?,
            dying_cgroups: number_after(&cgroups, "nr_dying_descendants")?,
            counted: Counted {
                mounts: lines("/proc/self/mountinfo").await?,
                mounts_of_init: lines("/proc/2/mountinfo").await?,
                loops: present(node, &mut machine, 16, |number| {
                    format!("/sys/block/loop{number}/loop/backing_file")
                })
                .await?,
                descriptors: present(node, &mut machine, 128, |number| {
                    format!("/proc/self/fdinfo/{number}")
                })
                .await?,
                descriptors_of_init: present(node, &mut machine, 64, |number| {
                    format!("/proc/1/fdinfo/{number}")
                })
                .await?,
                processes: processes(node)?,
                cgroups: number_after(&cgroups, "nr_descendants")?,
            },
        })
    }

    /// The best of some: what comes and goes is not what is left.
    fn least(some: &[Self]) -> anyhow::Result<Self> {
        let counted = some.iter().map(|left| left.counted).min();
        Ok(Self {
            free_kib: some.iter().map(|left| left.free_kib).max().unwrap_or(0),
            dying_cgroups: some
                .iter()
                .map(|left| left.dying_cgroups)
                .min()
                .unwrap_or(0),
            counted: counted.context("nothing was measured")?,
        })
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            free_kib,
            dying_cgroups,
            counted,
        } = self;
        write!(
            f,
            "{free_kib} KiB free, {dying_cgroups} dying cgroups, {counted:?}"
        )
    }
}

/// Free memory, pages on the processors' own lists included.
async fn free_kib(node: &Node) -> anyhow::Result<u64> {
    let free = number_after(&node.read("/proc/meminfo").await?, "MemFree:")?;
    let zones = node.read("/proc/zoneinfo").await?;
    let on_lists = zones.lines().filter_map(|line| {
        let count = line.trim().strip_prefix("count:")?;
        count.trim().parse::<u64>().ok()
    });
    Ok(free + on_lists.sum::<u64>() * 4)
}

fn number_after(text: &str, key: &str) -> anyhow::Result<u64> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(key))
        .with_context(|| format!("no {key} in {text:?}"))?;
    let number = line.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("{key} {line:?}"))
}

/// How many of the files are there.
async fn present(
    node: &Node,
    machine: &mut Machine,
    highest: usize,
    path: impl Fn(usize) -> String,
) -> anyhow::Result<usize> {
    let mut count = 0;
    for number in 0..highest {
        if node.has_file(machine, &path(number)).await? {
            count += 1;
        }
    }
    Ok(count)
}

/// Processes that are no threads of the kernel: those have no command line.
fn processes(node: &Node) -> anyhow::Result<usize> {
    let greeter = Greeter::of(node)?;
    let names = greeter.get(&format!("/list/{PROCESSES}"))?;
    let numbers = names.lines().filter(|name| name.parse::<u32>().is_ok());
    let lines = numbers.map(|number| {
        // One that has ended meanwhile is none.
        let line = greeter.get(&format!("/read/{PROCESSES}/{number}/cmdline"));
        line.is_ok_and(|line| !line.is_empty())
    });
    Ok(lines.filter(|is_one| *is_one).count())
}
