//! The filesystems that machined itself adds to what init prepared (docs/contracts.md).

use std::path::Path;

use anyhow::Context as _;
use sys_mount::{Mount, MountFlags};

/// Where, of what type and with which options.
const MOUNTS: [(&str, &str, MountFlags, &str); 3] = [
    (
        "/dev/pts",
        "devpts",
        MountFlags::NOSUID.union(MountFlags::NOEXEC),
        "mode=0620,gid=5,ptmxmode=0666",
    ),
    (
        "/dev/shm",
        "tmpfs",
        MountFlags::NOSUID.union(MountFlags::NODEV),
        "mode=1777",
    ),
    (
        "/tmp",
        "tmpfs",
        MountFlags::NOSUID.union(MountFlags::NODEV),
        "mode=1777,size=16m",
    ),
];

/// Mounts them. One that is there already is left: machined was restarted.
pub fn mount() -> anyhow::Result<()> {
    let mounted = std::fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    for (target, kind, flags, options) in MOUNTS {
        if is_mounted(&mounted, target) {
            continue;
        }
        if target.starts_with("/dev/") {
            std::fs::create_dir_all(target).with_context(|| format!("make {target}"))?;
        }
        Mount::builder()
            .fstype(kind)
            .flags(flags)
            .data(options)
            .mount(kind, Path::new(target))
            .with_context(|| format!("mount a {kind} on {target}"))?;
    }
    Ok(())
}

/// Whether something is mounted at `target`, by the lines of proc_mounts(5): device, mount point, type, options.
pub(crate) fn is_mounted(mounts: &str, target: &str) -> bool {
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_by_their_whole_name() {
        let mounts = "devtmpfs /dev devtmpfs rw 0 0\ntmpfs /tmpx tmpfs rw 0 0\n";
        assert!(is_mounted(mounts, "/dev"));
        assert!(!is_mounted(mounts, "/tmp"));
        assert!(!is_mounted(mounts, "/dev/pts"));
    }
}
