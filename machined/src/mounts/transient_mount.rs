//! A filesystem that is mounted for as long as somebody here uses it.

use std::io;
use std::path::{Path, PathBuf};

use super::filesystem::{Filesystem, MountFlags, UnmountFlags, unmount};

/// A mount; dropping it unmounts.
#[derive(Debug)]
pub struct TransientMount {
    target: PathBuf,
}

impl TransientMount {
    /// Mounts it at `target`, which is made, and beside its own flags nosuid, nodev and noexec. Nobody else mounts there: what is there was
    /// left by a machined that died.
    pub fn new(mut filesystem: Filesystem<'_>, target: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(target)?;
        while free(target).is_ok() {}
        filesystem.flags |= MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        filesystem.mount(target)?;
        Ok(Self {
            target: target.to_owned(),
        })
    }
}

impl Drop for TransientMount {
    fn drop(&mut self) {
        if let Err(error) = free(&self.target) {
            tracing::warn!("{} stays mounted: {error}", self.target.display());
        }
    }
}

/// Has the place free at once. A child that another thread forks has all descriptors of this process until it executes its program,
/// those of files in here too; it would make a plain umount(2) fail with EBUSY, and every mount in this place after it.
fn free(target: &Path) -> io::Result<()> {
    unmount(target, UnmountFlags::DETACH)
}
