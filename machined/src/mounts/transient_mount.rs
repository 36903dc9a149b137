//! A filesystem that stays mounted only while it is in use.

use std::io;
use std::path::{Path, PathBuf};

use super::filesystem::{Filesystem, MountFlags, UnmountFlags, unmount};

/// A mount that is unmounted when this value is dropped.
#[derive(Debug)]
pub struct TransientMount {
    target: PathBuf,
}

impl TransientMount {
    /// Mounts the filesystem at `target`, which is made, and adds the flags nosuid, nodev and noexec. The mount point is used for
    /// nothing else: a mount that is there already was left by a machined that died, and is removed.
    pub fn new(mut filesystem: Filesystem<'_>, target: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(target)?;
        while free(target).is_ok() {}
        filesystem.flags |= MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        filesystem.mount(target)?;
        Ok(Self {
            target: target.to_owned(),
        })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.target
    }
}

impl Drop for TransientMount {
    fn drop(&mut self) {
        if let Err(error) = free(&self.target) {
            tracing::warn!("{} stays mounted: {error}", self.target.display());
        }
    }
}

/// Unmounts at once, even if a file in it is open. A child that another thread forks has all descriptors of this process until it
/// executes its program; a plain umount(2) would fail with EBUSY because of them, and every later mount in this place too.
fn free(target: &Path) -> io::Result<()> {
    unmount(target, UnmountFlags::DETACH)
}
