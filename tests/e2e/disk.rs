//! The owned disk over boots: made once, reused, and grown when the disk has grown.

use anyhow::ensure;
use instar_api::machine::ShutdownRequest;
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{ImageUnderTest, Node, NodePlan, Outcome, Scratch, Test, tests};

use crate::PATIENCE;

const GIB: u64 = 1 << 30;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        is_made_then_reused_and_grown,
        holds_the_config_over_a_reboot,
        is_not_needed_and_its_absence_is_told
    ]
}

fn plan(scratch: &Scratch) -> anyhow::Result<NodePlan> {
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .disk(scratch.join("disk.img"))
        .configure(|config| config.install_disk("/dev/vda")))
}

async fn is_made_then_reused_and_grown(scratch: Scratch) -> Outcome {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let node = plan(&scratch)?.name("first").boot().await?;
    let made = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(made.contains("new)"), "{made}");
    // A machine that still boots refuses to be shut down.
    node.wait_until_ready(PATIENCE).await?;
    let request = ShutdownRequest::default();
    node.machine().await?.shutdown(request).await?;
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    drop(node);

    std::fs::OpenOptions::new()
        .write(true)
        .open(&disk)?
        .set_len(2 * GIB)?;
    let node = plan(&scratch)?.name("second").boot().await?;
    let reused = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(
        reused.contains("reused)") && reused.contains("1.8 GiB"),
        "{reused}"
    );
    // The kernel's own word: 4096 bytes a block, and all of the disk but EFI and STATE before it is the filesystem's.
    let grown = node.wait_for_line("resized filesystem to ", PATIENCE)?;
    let blocks: u64 = grown
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .trim()
        .parse()?;
    ensure!(
        (2 * GIB - (160 << 20)..2 * GIB).contains(&(blocks * 4096)),
        "{grown}"
    );
    Ok(())
}

/// What a machine was once told is enough for it to come back, and to be the same machine.
async fn holds_the_config_over_a_reboot(scratch: Scratch) -> Outcome {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let node = plan(&scratch)?.name("first").boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    // What was written is on the disk, whatever happens next.
    let identity = node.end();

    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .name("second")
        .disk(&disk)
        .without_config(identity)
        .boot()
        .await?;
    node.wait_for_line("machine config: from STATE", PATIENCE)?;
    let reused = node.wait_for_line("/var is the partition /dev/vda3", PATIENCE)?;
    ensure!(reused.contains("reused)"), "{reused}");
    node.wait_until_ready(PATIENCE).await?;
    let hostname = node.read("/proc/sys/kernel/hostname").await?;
    ensure!(hostname.trim() == "first", "it is called {hostname}");
    Ok(())
}

async fn is_not_needed_and_its_absence_is_told(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    node.wait_for_line("/var is in memory", PATIENCE)?;
    Ok(())
}
