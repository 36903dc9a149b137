//! A machine that hangs: no process runs in it any more, and its watchdog resets it.

use std::path::Path;

use anyhow::ensure;
use instar_qemu::{ConsoleMark, Drive, VmSpec, WatchdogAction};
use instar_tests::{
    EspImage, GREETER_PORT, Greeter, ImageUnderTest, MachineConfig, Node, Outcome, Registry,
    Scratch, Test, chapters, push_greeter, rootfs_that_hangs, tests, uefi,
};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![the_watchdog_resets_a_new_version_that_hangs_and_the_old_one_is_back]
}

async fn the_watchdog_resets_a_new_version_that_hangs_and_the_old_one_is_back(
    scratch: Scratch,
) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let node = start(&scratch, &registry)?;
    the_new_version_hangs_with_its_first_container(&node)?;
    let mark = node.vm().console_mark()?;
    chapters![
        the_watchdog_resets_what_stands_still(&node, mark),
        the_old_version_is_back_and_has_its_watchdog_fed(&node, mark),
    ]
    .await
}

fn start(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let disk = scratch.join("disk.img");
    put_a_version_that_hangs_on(&disk, scratch)?;
    let host = registry.host_for_guest();
    let spec = VmSpec::uefi(uefi()?)
        .drive(Drive::raw(&disk))
        .watchdog(WatchdogAction::Reset);
    let with_greeter = move |config: MachineConfig| {
        let config = config.registry(&host).install_disk("/dev/vda");
        config.greeter(&host)
    };
    let plan = Node::plan_from(scratch, spec).forward(GREETER_PORT);
    plan.configure(with_greeter).start()
}

/// The new version has one try left: PID 1, machined and all other processes stand still in it.
fn put_a_version_that_hangs_on(disk: &Path, scratch: &Scratch) -> Outcome {
    ImageUnderTest::first()?.put_on_disk(disk, 512 << 20)?;
    let second = ImageUnderTest::second()?;
    let rootfs = rootfs_that_hangs(scratch, "hanging", &second)?;
    EspImage::of_disk(disk).add_with_one_try(&second.uki_with(&rootfs)?)?;
    Ok(())
}

fn the_new_version_hangs_with_its_first_container(node: &Node) -> Outcome {
    node.wait_for_line("v0.2.0 as generation 1", PATIENCE)?;
    node.wait_for_line("feeding /dev/watchdog0", PATIENCE)?;
    node.wait_for_line("double: everything stops now", PATIENCE)?;
    Ok(())
}

async fn the_watchdog_resets_what_stands_still(node: &Node, mark: ConsoleMark) -> Outcome {
    node.vm().qmp().wait_event("WATCHDOG", PATIENCE)?;
    let silence = node
        .vm()
        .wait_for_line_after(mark, "double: and goes on", PATIENCE / 60);
    ensure!(silence.is_err(), "it did not hang");
    Ok(())
}

/// The watchdog is fed again, and does not reset the machine while it works.
async fn the_old_version_is_back_and_has_its_watchdog_fed(
    node: &Node,
    mark: ConsoleMark,
) -> Outcome {
    node.vm()
        .wait_for_line_after(mark, "v0.1.0 as generation 1", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == "v0.1.0");
    Greeter::of(node)?.greets()?;
    node.vm()
        .wait_for_line_after(mark, "feeding /dev/watchdog0", PATIENCE)?;
    Ok(())
}
