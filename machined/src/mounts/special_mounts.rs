//! The filesystems that machined itself mounts, beside those that init prepared (docs/contracts.md).

use std::path::Path;

use anyhow::Context as _;

use super::filesystem::{Filesystem, MountFlags};
use crate::base::mount_table::is_mounted;

/// Mount point, type, flags and options.
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

/// Where they are mounted: each generation has its own.
pub fn targets() -> impl Iterator<Item = &'static str> {
    MOUNTS.iter().map(|(target, ..)| *target)
}

/// Mounts them. A filesystem that is mounted already is left: machined was restarted.
pub fn mount() -> anyhow::Result<()> {
    for (target, kind, flags, options) in MOUNTS {
        let target = Path::new(target);
        if is_mounted(target) {
            continue;
        }
        if target.starts_with("/dev") {
            std::fs::create_dir_all(target)
                .with_context(|| format!("make {}", target.display()))?;
        }
        let filesystem = Filesystem {
            kind,
            source: Path::new(kind),
            flags,
            options,
        };
        let mounted = filesystem.mount(target);
        mounted.with_context(|| format!("mount a {kind} on {}", target.display()))?;
    }
    Ok(())
}
