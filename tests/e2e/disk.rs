//! The node's disk over several boots: made once, reused, and grown when the disk has grown; chosen by the config, and
//! wiped by a reset.

mod choice;
mod reset;

use anyhow::{Result, ensure};
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{
    ImageUnderTest, Node, NodePlan, Outcome, Release, Scratch, Talosctl, Test, chapters, tests,
};

use self::choice::the_disk_of_the_config_is_the_only_one_that_is_written;
use self::reset::{
    a_machine_goes_on_after_a_reset_as_a_new_one, the_disk_forgets_what_a_reset_wipes,
};
use crate::PATIENCE;

const GIB: u64 = 1 << 30;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_disk_is_made_then_reused_and_grown,
        the_disk_holds_the_config_over_a_reboot,
        the_disk_forgets_what_a_reset_wipes,
        a_machine_goes_on_after_a_reset_as_a_new_one,
        the_disk_of_the_config_is_the_only_one_that_is_written,
        a_missing_disk_is_reported_and_not_fatal
    ]
}

fn plan(scratch: &Scratch) -> Result<NodePlan> {
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .disk(scratch.join("disk.img"))
        .configure(|config| config.install_disk("/dev/vda")))
}

async fn the_disk_is_made_then_reused_and_grown(scratch: Scratch) -> Outcome {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let node = plan(&scratch)?.name("first").boot().await?;
    chapters![
        a_partition_is_made(&node),
        a_shutdown_tells_its_end_to_whoever_listens(&node),
    ]
    .await?;
    drop(node);

    let file = std::fs::OpenOptions::new().write(true).open(&disk)?;
    file.set_len(2 * GIB)?;
    let node = plan(&scratch)?.name("second").boot().await?;
    chapters![the_partition_is_reused_and_grown(&node)].await
}

/// Waits until the machine is ready: during the boot it refuses a shutdown.
async fn a_partition_is_made(node: &Node) -> Outcome {
    let made = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(made.contains("new)"), "{made}");
    node.wait_until_ready(PATIENCE).await
}

/// Events reach a client that subscribes after the call, too. A client that follows a log sees the stream end, and does
/// not reconnect.
async fn a_shutdown_tells_its_end_to_whoever_listens(node: &Node) -> Outcome {
    let talosctl = Talosctl::of(node, Release::V1_14).await?;
    let (said, followed) = tokio::join!(
        talosctl.run("shutdown --force --action-first"),
        talosctl.run("dmesg -f")
    );
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(
        followed.code == Some(1) && followed.complaint.contains("Unavailable"),
        "{:?}",
        followed.complaint
    );
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

/// The kernel's message counts blocks of 4096 bytes; the filesystem has all of the disk but EFI and STATE before it.
async fn the_partition_is_reused_and_grown(node: &Node) -> Outcome {
    let reused = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(
        reused.contains("reused)") && reused.contains("1.8 GiB"),
        "{reused}"
    );
    let grown = node.wait_for_line("resized filesystem to ", PATIENCE)?;
    let blocks = grown.rsplit(' ').next().unwrap_or_default().trim();
    let bytes = blocks.parse::<u64>()? * 4096;
    ensure!((2 * GIB - (160 << 20)..2 * GIB).contains(&bytes), "{grown}");
    Ok(())
}

/// The config is applied once; from its disk the machine comes back as the same machine.
async fn the_disk_holds_the_config_over_a_reboot(scratch: Scratch) -> Outcome {
    create_blank_disk(&scratch.join("disk.img"), DiskFormat::Raw, GIB)?;
    let node = plan(&scratch)?.name("first").boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    // The config is on the disk before the power is cut.
    let identity = node.end();
    let plan = plan(&scratch)?.name("second").without_config(identity);
    let node = plan.boot().await?;
    chapters![
        the_machine_comes_back_as_it_was(&node),
        a_reset_without_a_reboot_turns_the_machine_off(&node),
    ]
    .await
}

async fn the_machine_comes_back_as_it_was(node: &Node) -> Outcome {
    node.wait_for_line("machine config: from STATE", PATIENCE)?;
    let reused = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(reused.contains("reused)"), "{reused}");
    node.wait_until_ready(PATIENCE).await?;
    let hostname = node.hostname().await?;
    ensure!(hostname == "first", "it is called {hostname}");
    Ok(())
}

/// Without `--reboot` the machine is off after a reset, and blank.
async fn a_reset_without_a_reboot_turns_the_machine_off(node: &Node) -> Outcome {
    let talosctl = Talosctl::of(node, Release::V1_13).await?;
    let said = talosctl.run("reset").await;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

async fn a_missing_disk_is_reported_and_not_fatal(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    node.wait_for_line("/var is in memory", PATIENCE)?;
    node.wait_for_line("logs are kept in memory alone", PATIENCE)?;
    Ok(())
}
