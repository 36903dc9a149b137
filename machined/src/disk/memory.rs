//! /var in memory, on a machine without a disk.
//!
//! If init has a workload domain, /var is a directory of it: containers live through a change of generations, so their files have to
//! as well. The next generation finds those files, as it would on a disk. When no workload lives on, the domain is cleared before
//! anything is mounted, and /var is new.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use tracing::warn;

use super::{
    error::OwnedDiskError,
    volume::{FLAGS, Found},
};
use crate::base::removal;
use crate::mounts::filesystem::{Filesystem, MountFlags};

/// Path of /var in the domain.
fn directory(domain: &Path) -> PathBuf {
    domain.join("var")
}

/// Mounts memory at `target`: a directory of the domain if there is one, else a tmpfs of this generation with at most `size`
/// bytes. init limits the domain to half of the machine's memory (tmpfs(5)).
pub(super) fn mount_memory(
    target: &Path,
    domain: &Path,
    size: u64,
) -> Result<Found, OwnedDiskError> {
    let failed = |what: &str| {
        let (what, target) = (what.to_owned(), target.to_owned());
        move |source| OwnedDiskError::Mount {
            what,
            target,
            source,
        }
    };
    if !domain.is_dir() {
        let memory = Filesystem {
            kind: "tmpfs",
            source: Path::new("tmpfs"),
            flags: FLAGS,
            options: &format!("size={size},mode=0755"),
        };
        memory.mount(target).map_err(failed("a tmpfs"))?;
        return Ok(Found::Nothing);
    }
    let source = directory(domain);
    let found = match DirBuilder::new().mode(0o755).create(&source) {
        Ok(()) => Found::Nothing,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Found::Filesystem,
        Err(error) => return Err(failed(&format!("{source:?}"))(error)),
    };
    // A bind mount takes over the flags of its source: /run/workloads has the same flags.
    let bind = Filesystem {
        kind: "",
        source: &source,
        flags: MountFlags::BIND,
        options: "",
    };
    bind.mount(target).map_err(failed(&format!("{source:?}")))?;
    Ok(found)
}

/// Frees the memory of a /var that has moved to a disk.
pub(super) fn forget_memory(domain: &Path) {
    let directory = directory(domain);
    if let Err(error) = removal::tree(&directory) {
        warn!("{directory:?} stays in memory until the next boot: {error}");
    }
}
