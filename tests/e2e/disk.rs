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
    let made = node.wait_for_line("/var is the partition /dev/vda1", PATIENCE)?;
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
    let reused = node.wait_for_line("/var is the partition /dev/vda1", PATIENCE)?;
    ensure!(
        reused.contains("reused)") && reused.contains("1.9 GiB"),
        "{reused}"
    );
    // The kernel's own word: 4096 bytes a block, and no more than a few MiB of the disk are not the filesystem's.
    let grown = node.wait_for_line("resized filesystem to ", PATIENCE)?;
    let blocks: u64 = grown
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .trim()
        .parse()?;
    ensure!(
        (2 * GIB - (8 << 20)..2 * GIB).contains(&(blocks * 4096)),
        "{grown}"
    );
    Ok(())
}

async fn is_not_needed_and_its_absence_is_told(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    node.wait_for_line("/var is in memory", PATIENCE)?;
    node.wait_for_line("logs are kept in memory alone", PATIENCE)?;
    Ok(())
}
