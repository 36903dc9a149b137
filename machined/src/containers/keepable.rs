//! Whether a container can outlive the generation that it was started in: no file or mount of it may belong to the generation.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::host_files::{DOMAIN, has_domain};
use super::spec::ContainerSpec;
use crate::values::MountOption;

/// Why a container ends with its generation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKeepable {
    /// The machine's init is too old to have a workload domain.
    #[error("this machine's init keeps no containers")]
    NoDomain,
    /// /var is in memory and new in each generation.
    #[error("/var is in memory that ends with the generation")]
    VarInMemory,
    /// A mount of it is shared with the generation, so mounts of the generation would come and go in the container.
    #[error("its mount at {0:?} is shared with the generation")]
    Shared(PathBuf),
    /// A mount of it has its source on a filesystem of the generation.
    #[error("it mounts {0:?}, which belongs to the generation")]
    OfTheGeneration(PathBuf),
}

/// Checks that a container can be kept.
///
/// # Errors
/// The first reason why it cannot.
pub fn keepable(spec: &ContainerSpec) -> Result<(), NotKeepable> {
    if !has_domain() {
        return Err(NotKeepable::NoDomain);
    }
    let device = |path: &Path| std::fs::metadata(path).map(|it| it.dev()).ok();
    let var = device(Path::new("/var"));
    // A filesystem without a disk has major number 0. A /var in memory lasts only as a part of the domain.
    let lasts = |var| rustix::fs::major(var) != 0 || Some(var) == device(Path::new(DOMAIN));
    if !var.is_some_and(lasts) {
        return Err(NotKeepable::VarInMemory);
    }
    for mount in &spec.mounts {
        if mount.options.contains(&MountOption::Rshared) {
            return Err(NotKeepable::Shared(mount.destination.as_path().to_owned()));
        }
    }
    // The kernel's own filesystems are the same in every generation.
    let lasting = ["/dev", "/proc", "/sys", "/sys/fs/cgroup"].map(|path| device(Path::new(path)));
    for (source, _) in spec.sources() {
        let on = device(&source);
        if on != var && !lasting.contains(&on) {
            return Err(NotKeepable::OfTheGeneration(source));
        }
    }
    Ok(())
}
