//! A filesystem that is mounted for as long as somebody here uses it.

use std::io;
use std::path::{Path, PathBuf};

use sys_mount::{Mount, MountFlags, UnmountFlags};

/// What is mounted, and how: mount(2).
#[derive(Debug, Clone, Copy)]
pub struct Filesystem<'a> {
    /// Its type.
    pub kind: &'a str,
    /// The block device, or what stands for one.
    pub source: &'a Path,
    /// Beside nosuid, nodev and noexec, which always hold.
    pub flags: MountFlags,
    /// Of this type of filesystem.
    pub options: &'a str,
}

/// A mount; dropping it unmounts.
#[derive(Debug)]
pub struct TransientMount {
    target: PathBuf,
}

impl TransientMount {
    /// Mounts it at `target`, which is made. Nobody else mounts there: what is there was left by a machined that died.
    pub fn new(filesystem: Filesystem<'_>, target: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(target)?;
        while unmount(target).is_ok() {}
        Mount::builder()
            .fstype(filesystem.kind)
            .flags(filesystem.flags | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC)
            .data(filesystem.options)
            .mount(filesystem.source, target)?;
        Ok(Self {
            target: target.to_owned(),
        })
    }
}

impl Drop for TransientMount {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.target) {
            tracing::warn!("{} stays mounted: {error}", self.target.display());
        }
    }
}

/// Has the place free at once. A child that another thread forks has all descriptors of this process until it executes its program,
/// those of files in here too; it would make a plain umount(2) fail with EBUSY, and every mount in this place after it.
fn unmount(target: &Path) -> io::Result<()> {
    sys_mount::unmount(target, UnmountFlags::DETACH)
}
