//! What is there and does nothing. Processes of the node: noticed, ended and started again, while containers go on. A disk: does not
//! keep the machine from starting again.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use instar_api::machine::RebootRequest;
use instar_api::machine::reboot_request::Mode;
use instar_qemu::{DiskFormat, Drive, create_blank_disk};
use instar_tests::{
    GREETER, Greeter, ImageUnderTest, MachineConfig, Node, Outcome, Registry, Scratch, ServedDisk,
    Test, WITH_CGROUPS, plan_with_greeter, tests,
};

use crate::PATIENCE;
use crate::installed::OTHER_PORT;

/// A greeter that sees the node's cgroups, and is started again to make machined look at its images.
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

/// The driver waits for the disk, and the boot for the driver: for longer than init's deadline, which is no reason to end a machine that
/// can be asked. A reboot by force takes the boot's place, and the kernel would wait for the driver before it ended.
async fn a_disk_without_an_answer_does_not_keep_the_machine_from_restarting(
    scratch: Scratch,
) -> Outcome {
    let file = scratch.join("disk.img");
    create_blank_disk(&file, DiskFormat::Raw, DISK_BYTES)?;
    let disk = ServedDisk::serve(&file)?;
    let drive = Drive::raw(file).served(disk.port());
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .spec(|spec| spec.drive(drive).append("instar.boot-deadline=40"))
        .configure(|config| config.install_disk("/dev/vda"))
        .start()?;
    // Whatever reads it before has read it.
    let mut mark = node.vm().console_mark()?;
    mark = node
        .vm()
        .wait_for_line_after(mark, "Run /init as init process", PATIENCE)?
        .end;
    disk.fall_silent();
    node.wait_for_api(PATIENCE).await?;
    // QEMU itself cannot be asked for the time while it waits for the disk.
    node.wait_until("init's deadline is over", PATIENCE, async || {
        let uptime = node.uptime().await?;
        ensure!(uptime.as_secs() > 60, "{uptime:?}");
        Ok(())
    })
    .await?;
    let console = node.vm().console();
    ensure!(!console.contains("did not report healthy in time"));
    let by_force = RebootRequest {
        mode: Mode::Force.into(),
    };
    node.machine().await?.reboot(by_force).await?;
    for step in [
        "machined asks for reboot",
        "processes do not die",
        "the kernel does not end; resetting the machine",
        "sysrq: Resetting",
    ] {
        mark = node.vm().wait_for_line_after(mark, step, PATIENCE)?.end;
    }
    // QEMU waits for its disks, too, before it starts a machine again.
    disk.unplug()?;
    node.vm()
        .wait_for_line_after(mark, "generation 1 starts", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    Ok(())
}

/// One boot for both.
async fn processes_that_hang_are_ended_and_started_again(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let image = registry.image_for_guest("greeter:v1");
    let mut plan = plan_with_greeter(&scratch, &registry, move |config| {
        let config = config.greeter_at(OTHER, &image, OTHER_PORT, WITH_CGROUPS);
        let twin = |config: MachineConfig, (name, port)| config.greeter_at(name, &image, port, "");
        TWINS.into_iter().fold(config, twin)
    })?
    .blank_disk()?
    .forward(OTHER_PORT);
    for (_, port) in TWINS {
        plan = plan.forward(port);
    }
    let node = plan.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let other = Greeter::at(&node, OTHER_PORT)?;
    a_frozen_apid(&node, &other).await?;
    let twins = twins_speak(&node, "before").await?;
    a_frozen_machined(&node, &other).await?;
    // What keeps a container's output over machined's end is kept under the container's name.
    ensure!(
        twins_speak(&node, "after").await? == twins,
        "a twin has died"
    );
    each_twin_is_heard(&node).await
}

/// Has each twin print a word of its own. Gives their processes.
async fn twins_speak(node: &Node, when: &str) -> anyhow::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for (name, port) in TWINS {
        let twin = Greeter::at(node, port)?;
        // There is no such file: what counts is that it was asked for.
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

async fn a_frozen_apid(node: &Node, other: &Greeter) -> Outcome {
    let greeter = Greeter::of(node)?;
    let before = node.service_pid("apid").await?;
    let machined = pid_of_machined(node).await?;
    other.get("/write/cgroup/generation.1/apid/cgroup.freeze?1")?;
    let held = Instant::now();
    let asked = tokio::time::timeout(Duration::from_secs(5), node.version()).await;
    ensure!(asked.is_err(), "a frozen apid answers: {asked:?}");
    // The API cannot be asked, but what machined says is on its disk.
    node.wait_until("machined ends it", PATIENCE, async || {
        let log = greeter.get("/read/data/log/machined.log")?;
        ensure!(
            log.contains("service apid: it did not do its work"),
            "{log}"
        );
        Ok(())
    })
    .await?;
    println!("apid was ended after {:.1} s", held.elapsed().as_secs_f64());
    // The next one is in the same cgroup.
    other.get("/write/cgroup/generation.1/apid/cgroup.freeze?0")?;
    let after = node
        .wait_until("apid answers again", PATIENCE, || node.service_pid("apid"))
        .await?;
    println!("apid was back after {:.1} s", held.elapsed().as_secs_f64());
    ensure!(after != before, "it is still {before}");
    ensure!(pid_of_machined(node).await? == machined);
    let events = node.service("apid").await?.events.unwrap_or_default();
    ensure!(
        events
            .events
            .iter()
            .any(|event| event.state == "Failed" && event.msg.contains("did not do its work")),
        "{events:#?}"
    );
    Ok(())
}

async fn a_frozen_machined(node: &Node, other: &Greeter) -> Outcome {
    let greeter = Greeter::of(node)?;
    // There is no such file: what counts is that it was asked for.
    let _ = greeter.get("/read/said-before-machined-froze");
    let container = node.service_pid(GREETER).await?;
    let generation = node.boot_id().await?;
    let before = pid_of_machined(node).await?;

    // The record of the image that a container is started from becomes a pipe: whoever opens it waits for somebody to write to it.
    let images = greeter.get(&format!("/list{IMAGES}"))?;
    let image = images
        .split_whitespace()
        .find(|name| name.len() == 64)
        .with_context(|| format!("no image in {images:?}"))?;
    let record = format!("{IMAGES}/{image}/image.json");
    greeter.get(&format!("/rename{record}?{record}.away"))?;
    greeter.get(&format!("/pipe{record}"))?;
    other.exit(1);
    let held = Instant::now();
    node.wait_until("it hangs", PATIENCE, async || {
        let asked = tokio::time::timeout(Duration::from_secs(5), node.version()).await;
        ensure!(asked.is_err(), "machined answers: {asked:?}");
        Ok(())
    })
    .await?;
    // It goes on waiting, as it has opened the pipe; the next one does not step into the same trap.
    greeter.get(&format!("/rename{record}.away?{record}"))?;
    greeter.greets().context("with machined frozen")?;
    let line = node.wait_for_line("starting machined again", PATIENCE)?;
    println!("{line}, after {:.1} s", held.elapsed().as_secs_f64());
    ensure!(line.contains("signal 6"), "{line}");
    node.wait_for_line("gave no sign of life", PATIENCE)?;

    node.wait_until("the new machined has taken over", PATIENCE, async || {
        ensure!(pid_of_machined(node).await? != before);
        ensure!(node.service_pid(GREETER).await? == container);
        Ok(())
    })
    .await?;
    ensure!(
        node.boot_id().await? == generation,
        "the generation was started anew"
    );
    greeter.greets()?;
    node.wait_until("its earlier words are in its log", PATIENCE, async || {
        let log = node.log(GREETER).await?;
        ensure!(log.contains("said-before-machined-froze"), "{log}");
        Ok(())
    })
    .await?;
    node.wait_until_ready(PATIENCE).await
}

/// As the node numbers it; the API answers from its own /proc.
async fn pid_of_machined(node: &Node) -> anyhow::Result<u32> {
    let stat = node.read("/proc/self/stat").await?;
    let pid = stat.split(' ').next().unwrap_or_default();
    pid.parse()
        .with_context(|| format!("no process number in {stat:?}"))
}
