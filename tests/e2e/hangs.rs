//! Hung processes and disks. A hung process of the node is noticed, ended and started again, while containers go on; a
//! hung disk does not keep the machine from starting again.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use instar_api::machine::reboot_request::Mode;
use instar_api::machine::{RebootRequest, ServiceEvent};
use instar_qemu::{ConsoleMark, DiskFormat, Drive, create_blank_disk};
use instar_tests::{
    GREETER, Greeter, ImageUnderTest, MachineConfig, Node, NodePlan, Outcome, Registry, Scratch,
    ServedDisk, Test, WITH_CGROUPS, chapters, plan_with_greeter, tests,
};

use crate::PATIENCE;
use crate::installed::OTHER_PORT;

/// A greeter that sees the node's cgroups; its restart makes machined look at its images.
const OTHER: &str = "other";
/// machined's store of images, as a container sees it.
const IMAGES: &str = "/data/lib/instar/images";

/// Two greeters whose names, as long as names may be, differ in the last character alone, and their ports.
const TWINS: [(&str, u16); 2] = [
    (
        "one-of-two-whose-names-are-as-long-as-the-name-of-a-container-1",
        8091,
    ),
    (
        "one-of-two-whose-names-are-as-long-as-the-name-of-a-container-2",
        8092,
    ),
];

const DISK_BYTES: u64 = 1 << 30;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        processes_that_hang_are_ended_and_started_again,
        a_disk_without_an_answer_does_not_keep_the_machine_from_restarting,
    ]
}

/// The driver waits for the disk and the boot waits for the driver, for longer than init's deadline: no reason for init
/// to end a machine that answers. A forced reboot replaces the boot; the kernel alone would wait for the driver first.
async fn a_disk_without_an_answer_does_not_keep_the_machine_from_restarting(
    scratch: Scratch,
) -> Outcome {
    let (disk, node) = on_a_served_disk(&scratch)?;
    // Reads of the disk by firmware or loader are over.
    let mark = node.vm().console_mark()?;
    let begun = "Run /init as init process";
    let begun = node.vm().wait_for_line_after(mark, begun, PATIENCE)?;
    disk.fall_silent();
    node.wait_for_api(PATIENCE).await?;
    chapters![
        a_machine_that_can_be_asked_outlives_inits_deadline(&node),
        a_reboot_by_force_starts_the_machine_again(&node, &disk, begun.end),
    ]
    .await
}

fn on_a_served_disk(scratch: &Scratch) -> anyhow::Result<(ServedDisk, Node)> {
    let file = scratch.join("disk.img");
    create_blank_disk(&file, DiskFormat::Raw, DISK_BYTES)?;
    let disk = ServedDisk::serve(&file)?;
    let drive = Drive::raw(file).served(disk.port());
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .spec(|spec| spec.drive(drive).append("instar.boot-deadline=40"))
        .configure(|config| config.install_disk("/dev/vda"))
        .start()?;
    Ok((disk, node))
}

async fn a_machine_that_can_be_asked_outlives_inits_deadline(node: &Node) -> Outcome {
    // QEMU itself does not report the time while it waits for the disk.
    node.wait_until("init's deadline is over", PATIENCE, async || {
        let uptime = node.uptime().await?;
        ensure!(uptime.as_secs() > 60, "{uptime:?}");
        Ok(())
    })
    .await?;
    let console = node.vm().console();
    ensure!(!console.contains("did not report healthy in time"));
    Ok(())
}

/// The time from the call to the next power-on, after the console's message.
async fn a_reboot_by_force_starts_the_machine_again(
    node: &Node,
    disk: &ServedDisk,
    mut mark: ConsoleMark,
) -> Outcome {
    let mode = Mode::Force.into();
    node.machine().await?.reboot(RebootRequest { mode }).await?;
    for step in STEPS_OF_A_REBOOT {
        mark = node.vm().wait_for_line_after(mark, step, PATIENCE)?.end;
    }
    // QEMU waits for its disks, too, before it starts a machine again.
    disk.unplug()?;
    node.vm()
        .wait_for_line_after(mark, "generation 1 starts", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    Ok(())
}

const STEPS_OF_A_REBOOT: [&str; 4] = [
    "machined asks for reboot",
    "processes do not die",
    "the kernel does not end; resetting the machine",
    "sysrq: Resetting",
];

/// One boot serves both tests.
async fn processes_that_hang_are_ended_and_started_again(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = with_other_greeters(&scratch, &registry).await?;
    let other = Greeter::at(&node, OTHER_PORT)?;
    chapters![
        a_frozen_apid_is_ended_and_started_again(&node, &other),
        a_frozen_machined_is_ended_and_containers_are_heard_on(&node, &other),
    ]
    .await
}

async fn with_other_greeters(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let image = registry.image_for_guest("greeter:v1");
    let plan = plan_with_greeter(scratch, registry, move |config| {
        let config = config.greeter_at(OTHER, &image, OTHER_PORT, WITH_CGROUPS);
        let twin = |config: MachineConfig, (name, port)| config.greeter_at(name, &image, port, "");
        TWINS.into_iter().fold(config, twin)
    })?;
    let plan = plan.blank_disk()?.forward(OTHER_PORT);
    let twin = |plan: NodePlan, (_, port)| plan.forward(port);
    let plan = TWINS.into_iter().fold(plan, twin);
    plan.boot_until_ready(PATIENCE).await
}

/// The keeper of a container's output during machined's restart files it under the container's name.
async fn a_frozen_machined_is_ended_and_containers_are_heard_on(
    node: &Node,
    other: &Greeter,
) -> Outcome {
    let twins = twins_speak(node, "before").await?;
    a_frozen_machined_is_ended_and_started_again(node, other).await?;
    ensure!(
        twins_speak(node, "after").await? == twins,
        "a twin has died"
    );
    each_twin_is_heard(node).await
}

/// Has each twin print a word of its own. Returns their processes.
async fn twins_speak(node: &Node, when: &str) -> anyhow::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for (name, port) in TWINS {
        let twin = Greeter::at(node, port)?;
        // The file does not exist: the request alone makes the twin print the word.
        let _ = twin.get(&format!("/read/{}", word(port, when)));
        twin.greets()?;
        pids.push(node.service_pid(name).await?);
    }
    Ok(pids)
}

async fn each_twin_is_heard(node: &Node) -> Outcome {
    let [first, second] = TWINS;
    for ((name, own), (_, others)) in [(first, second), (second, first)] {
        node.wait_until("its words are in its log", PATIENCE, async || {
            let log = node.log(name).await?;
            for when in ["before", "after"] {
                ensure!(log.contains(&word(own, when)), "{name}: {log}");
                ensure!(!log.contains(&word(others, when)), "{name}: {log}");
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn word(port: u16, when: &str) -> String {
    format!("said-by-{port}-{when}-machined-froze")
}

async fn a_frozen_apid_is_ended_and_started_again(node: &Node, other: &Greeter) -> Outcome {
    let before = node.service_pid("apid").await?;
    let machined = pid_of_machined(node).await?;
    let freeze = "/write/cgroup/generation.1/apid/cgroup.freeze";
    other.get(&format!("{freeze}?1"))?;
    let held = Instant::now();
    does_not_answer(node).await?;
    machined_ends_apid(node).await?;
    println!("apid was ended after {:.1} s", held.elapsed().as_secs_f64());
    // The next apid runs in the same cgroup.
    other.get(&format!("{freeze}?0"))?;
    let after = node.wait_until("apid answers again", PATIENCE, || node.service_pid("apid"));
    ensure!(after.await? != before, "it is still {before}");
    println!("apid was back after {:.1} s", held.elapsed().as_secs_f64());
    ensure!(pid_of_machined(node).await? == machined);
    the_end_is_an_event_with_its_reason(node).await
}

async fn does_not_answer(node: &Node) -> Outcome {
    let asked = tokio::time::timeout(Duration::from_secs(5), node.version()).await;
    ensure!(asked.is_err(), "what is frozen answers: {asked:?}");
    Ok(())
}

/// The API does not answer, but machined's log is on the disk.
async fn machined_ends_apid(node: &Node) -> Outcome {
    let greeter = Greeter::of(node)?;
    node.wait_until("machined ends it", PATIENCE, async || {
        let log = greeter.get("/read/data/log/machined.log")?;
        ensure!(
            log.contains("service apid: it did not do its work"),
            "{log}"
        );
        Ok(())
    })
    .await
}

async fn the_end_is_an_event_with_its_reason(node: &Node) -> Outcome {
    let events = node.service("apid").await?.events.unwrap_or_default();
    let events = events.events;
    let is_end =
        |event: &ServiceEvent| event.state == "Failed" && event.msg.contains("did not do its work");
    ensure!(events.iter().any(is_end), "{events:#?}");
    Ok(())
}

async fn a_frozen_machined_is_ended_and_started_again(node: &Node, other: &Greeter) -> Outcome {
    let greeter = Greeter::of(node)?;
    // The file does not exist: the request alone makes the greeter print it.
    let _ = greeter.get("/read/said-before-machined-froze");
    let before = Running::on(node).await?;
    let trap = Trap::set(&greeter)?;
    other.exit(1);
    init_ends_a_machined_in_the_trap(node, &greeter, &trap).await?;
    the_next_machined_takes_over(node, &before).await?;
    greeter.greets()?;
    earlier_words_are_in_the_log(node).await?;
    node.wait_until_ready(PATIENCE).await
}

struct Running {
    machined: u32,
    container: u32,
    generation: String,
}

impl Running {
    async fn on(node: &Node) -> anyhow::Result<Self> {
        Ok(Self {
            container: node.service_pid(GREETER).await?,
            generation: node.boot_id().await?,
            machined: pid_of_machined(node).await?,
        })
    }
}

/// The record of a container's image is a pipe: opening it blocks until another process opens it for writing.
struct Trap {
    record: String,
}

impl Trap {
    fn set(greeter: &Greeter) -> anyhow::Result<Self> {
        let images = greeter.get(&format!("/list{IMAGES}"))?;
        let image = images
            .split_whitespace()
            .find(|name| name.len() == 64)
            .with_context(|| format!("no image in {images:?}"))?;
        let record = format!("{IMAGES}/{image}/image.json");
        greeter.get(&format!("/rename{record}?{record}.away"))?;
        greeter.get(&format!("/pipe{record}"))?;
        Ok(Self { record })
    }

    /// Removes the trap. The hung machined stays in it, as it has opened the pipe; the next one does not enter it.
    fn remove(&self, greeter: &Greeter) -> Outcome {
        let record = &self.record;
        greeter.get(&format!("/rename{record}.away?{record}"))?;
        Ok(())
    }
}

async fn init_ends_a_machined_in_the_trap(node: &Node, greeter: &Greeter, trap: &Trap) -> Outcome {
    let held = Instant::now();
    node.wait_until("it hangs", PATIENCE, || does_not_answer(node))
        .await?;
    trap.remove(greeter)?;
    greeter.greets().context("with machined frozen")?;
    let line = node.wait_for_line("starting machined again", PATIENCE)?;
    println!("{line}, after {:.1} s", held.elapsed().as_secs_f64());
    ensure!(line.contains("signal 6"), "{line}");
    node.wait_for_line("gave no sign of life", PATIENCE)?;
    Ok(())
}

async fn the_next_machined_takes_over(node: &Node, before: &Running) -> Outcome {
    node.wait_until("the new machined has taken over", PATIENCE, async || {
        ensure!(pid_of_machined(node).await? != before.machined);
        ensure!(node.service_pid(GREETER).await? == before.container);
        Ok(())
    })
    .await?;
    ensure!(
        node.boot_id().await? == before.generation,
        "the generation was started anew"
    );
    Ok(())
}

async fn earlier_words_are_in_the_log(node: &Node) -> Outcome {
    node.wait_until("its earlier words are in its log", PATIENCE, async || {
        let log = node.log(GREETER).await?;
        ensure!(log.contains("said-before-machined-froze"), "{log}");
        Ok(())
    })
    .await
}

/// machined's process number on the node; the API answers from machined's own /proc.
async fn pid_of_machined(node: &Node) -> anyhow::Result<u32> {
    let stat = node.read("/proc/self/stat").await?;
    let pid = stat.split(' ').next().unwrap_or_default();
    pid.parse()
        .with_context(|| format!("no process number in {stat:?}"))
}
