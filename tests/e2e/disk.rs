//! The owned disk over boots: made once, reused, and grown when the disk has grown.

use anyhow::ensure;
use instar_api::machine::ShutdownRequest;
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{ImageUnderTest, Instarctl, Node, NodePlan, Outcome, Scratch, Test, tests};

use crate::PATIENCE;

const GIB: u64 = 1 << 30;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        is_made_then_reused_and_grown,
        holds_the_config_over_a_reboot,
        forgets_what_a_reset_wipes,
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

/// Nothing of what was wiped can be read from the disk; the machine waits for a config, as a new one does.
async fn forgets_what_a_reset_wipes(scratch: Scratch) -> Outcome {
    const MARK: &str = "a-name-that-is-only-in-the-config";
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .name("first")
        .disk(&disk)
        .configure(|config| {
            config
                .install_disk("/dev/vda")
                .document(&format!("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nvolumeType: directory\n# {MARK}\n"))
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let holds_the_mark = || -> anyhow::Result<bool> {
        let bytes = std::fs::read(&disk)?;
        Ok(bytes.windows(MARK.len()).any(|it| it == MARK.as_bytes()))
    };
    ensure!(holds_the_mark()?, "the config is not on the disk at all");

    let client = Instarctl::of(&node, &scratch)?;
    let said = client
        .run(&["reset", "--system-labels-to-wipe", "BOOT"])
        .await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("EFI, STATE and EPHEMERAL"),
        "{said:?}"
    );
    let said = client
        .run(&["reset", "--system-labels-to-wipe", "STATE,EPHEMERAL"])
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    ensure!(!holds_the_mark()?, "the config is still on the disk");
    let identity = node.end();

    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .name("second")
        .disk(&disk)
        .without_config(identity)
        .start()?;
    node.wait_for_line("maintenance mode", PATIENCE)?;
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
