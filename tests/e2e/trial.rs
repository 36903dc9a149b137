//! A new version that the loader counts, and whose machined dies before the trial has ended: the trial goes on.

use anyhow::ensure;
use instar_qemu::{Drive, VmSpec};
use instar_tests::{
    EspImage, Identity, ImageUnderTest, Node, Outcome, Scratch, Test, rootfs_that_dies_once, tests,
    uefi,
};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_version_that_dies_first_and_then_has_no_config_goes_back,
        a_version_that_dies_first_and_then_works_is_kept
    ]
}

/// A machine with v0.1.0 and the last try of v0.2.0, whose machined dies once.
fn plan(scratch: &Scratch) -> anyhow::Result<instar_tests::NodePlan> {
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, 512 << 20)?;
    let second = ImageUnderTest::second()?;
    let rootfs = rootfs_that_dies_once(scratch, "dying", &second)?;
    EspImage::of_disk(&disk).add_with_one_try(&second.uki_with(&rootfs)?)?;
    let spec = VmSpec::uefi(uefi()?).drive(Drive::raw(&disk));
    Ok(Node::plan_from(scratch, spec))
}

async fn a_version_that_dies_first_and_then_has_no_config_goes_back(scratch: Scratch) -> Outcome {
    let node = plan(&scratch)?
        .without_config(Identity::administrator()?)
        .start()?;
    node.wait_for_line("v0.2.0 as generation 1 (restart)", PATIENCE)?;
    node.wait_for_line("v0.2.0 is not healthy, the machine reboots", PATIENCE)?;
    node.wait_for_line("v0.1.0 as generation 1 (boot)", PATIENCE)?;
    node.wait_for_line("no machine config: maintenance mode", PATIENCE)?;
    Ok(())
}

async fn a_version_that_dies_first_and_then_works_is_kept(scratch: Scratch) -> Outcome {
    let node = plan(&scratch)?
        .configure(|config| config.install_disk("/dev/vda"))
        .start()?;
    node.wait_for_line("v0.2.0 as generation 1 (restart)", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    // The version had one try: without a commit the machine would not boot it again.
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    Ok(())
}
