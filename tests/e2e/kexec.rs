//! Reboots past firmware and boot loader: into the running version, and into a new one, which is on trial as in any
//! upgrade.

use anyhow::{Context, ensure};
use instar_tests::{
    ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, Test, chapters, tests,
};

use crate::PATIENCE;
use crate::installed::{INSTALLER, install_with};

/// The firmware's message when it starts a loader.
const FIRMWARE: &str = "BdsDxe: starting";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        kexec_goes_past_the_firmware_and_is_blessed_as_ever,
        kexec_needs_a_disk,
    ]
}

/// Runs a command that ends with another kernel, and without the firmware.
async fn past_the_firmware(node: &Node, client: &Instarctl, arguments: &[&str]) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let said_before = node.vm().console().len();
    let said = client.run(arguments).await?;
    ensure!(said.code == Some(0), "{arguments:?}: {said:?}");
    ensure!(node.kernel_boot_id().await? != kernel, "no other kernel");
    node.wait_until_ready(PATIENCE).await?;
    let console = node.vm().console();
    let since = console.get(said_before..).context("a shorter console")?;
    let starts = since.contains("Linux version");
    ensure!(starts, "no kernel started: {since}");
    ensure!(!since.contains(FIRMWARE), "the firmware ran: {since}");
    Ok(())
}

async fn kexec_goes_past_the_firmware_and_is_blessed_as_ever(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = install_with(&scratch, &registry, |config| config).await?;
    let client = Instarctl::of(&node, &scratch)?;
    chapters![
        a_reboot_goes_past_the_firmware(&node, &client),
        an_upgrade_goes_past_the_firmware(&node, &client, &registry),
        what_was_blessed_starts_after_a_power_cut(node, &scratch),
    ]
    .await
}

async fn a_reboot_goes_past_the_firmware(node: &Node, client: &Instarctl) -> Outcome {
    let console = node.vm().console();
    ensure!(console.contains(FIRMWARE), "this is what shows it");
    past_the_firmware(node, client, &["reboot", "--mode", "kexec"]).await?;
    ensure!(node.version().await?.tag == ImageUnderTest::first()?.version());
    Ok(())
}

async fn an_upgrade_goes_past_the_firmware(
    node: &Node,
    client: &Instarctl,
    registry: &Registry,
) -> Outcome {
    let image = registry.image_for_guest(&format!("{INSTALLER}:v0.2.0"));
    let upgrade = ["upgrade", "--image", &image, "--reboot-mode", "kexec"];
    past_the_firmware(node, client, &upgrade).await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    Ok(())
}

/// The blessed version is the one that ran, not the one that the loader had started.
async fn what_was_blessed_starts_after_a_power_cut(node: Node, scratch: &Scratch) -> Outcome {
    let node = node.power_cycle().await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    node.wait_until_ready(PATIENCE).await?;
    // The machine may have another port on the host after the power cycle.
    let client = Instarctl::of(&node, scratch)?;
    chapters![a_rollback_leaves_kexec_aside(&node, &client)].await
}

async fn a_rollback_leaves_kexec_aside(node: &Node, client: &Instarctl) -> Outcome {
    let said = client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

async fn kexec_needs_a_disk(scratch: Scratch) -> Outcome {
    let image = ImageUnderTest::first()?;
    let node = Node::plan(&scratch, &image).boot().await?;
    let client = Instarctl::of(&node, &scratch)?;
    for wish in [
        &["reboot", "--mode", "kexec"][..],
        &["upgrade", "--image", "10.0.2.2:1/i", "--stage"],
    ] {
        // The machine goes on after a refused request.
        node.wait_until_ready(PATIENCE).await?;
        let said = client.run(wish).await?;
        ensure!(said.code != Some(0), "{wish:?}: {said:?}");
        let why = "does not boot from its disk";
        ensure!(said.complaint.contains(why), "{wish:?}: {said:?}");
    }
    Ok(())
}
