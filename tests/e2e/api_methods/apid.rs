//! apid, which talks to unauthenticated clients, as the kernel sees it.

use anyhow::{Context as _, ensure};
use instar_tests::{Node, Outcome, chapters};

/// apid has no rights on the machine.
pub(super) async fn apid_has_given_everything_up(node: &Node) -> Outcome {
    let apid = node.service_pid("apid").await?;
    chapters![
        apid_has_no_rights(node, apid),
        apid_sees_one_directory(node, apid),
        apid_is_given_little_memory(node),
    ]
    .await
}

async fn apid_has_no_rights(node: &Node, apid: u32) -> Outcome {
    node.has_no_rights(apid, 50).await?;
    node.has_status(apid, &[("Seccomp_filters:", "1")]).await
}

/// The only directory is read-only: its root in the filesystem, its mount point, and its options
/// (proc_pid_mountinfo(5)).
async fn apid_sees_one_directory(node: &Node, apid: u32) -> Outcome {
    let mounts = node.read(&format!("/proc/{apid}/mountinfo")).await?;
    ensure!(mounts.lines().count() == 1, "{mounts}");
    let fields: Vec<&str> = mounts.split(' ').collect();
    ensure!(fields[3..5] == ["/apid", "/"], "{mounts}");
    let options = fields[5];
    ensure!(options.starts_with("ro,nosuid,nodev,noexec"), "{mounts}");
    Ok(())
}

/// The limit is a quarter of half a gibibyte of memory, for all that callers make apid hold.
async fn apid_is_given_little_memory(node: &Node) -> Outcome {
    let file = "/sys/fs/cgroup/generation.1/apid/memory.max";
    let limit = node.read(file).await?;
    let limit: u64 = limit.trim().parse().context("apid may hold all memory")?;
    ensure!((64 << 20..=128 << 20).contains(&limit), "{limit}");
    Ok(())
}
