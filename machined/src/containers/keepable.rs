//! Whether a container can outlive the generation that it was started in: no file or mount of it may belong to the generation.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::host_files::{DOMAIN, has_domain};
use super::spec::ContainerSpec;
use crate::mounts::mount_table::mounts;
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
    /// A mount that it has got together with another one is of a filesystem of the generation.
    #[error("its mount at {0:?} belongs to the generation")]
    CameAlong(PathBuf),
    /// The table of its mounts cannot be read.
    #[error("its mounts cannot be read: {0}")]
    NotReadable(String),
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

/// Checks the mounts of a running container, by its first process. A mount of a host path brings along all that is mounted below it: /proc
/// brings the boot id, a file of the generation's /run, which would hold all of that memory for as long as the container runs.
///
/// # Errors
/// The first mount of a filesystem that ends with the generation.
pub fn mounts_are_keepable(pid: u32) -> Result<(), NotKeepable> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"));
    let table = table.map_err(|error| NotKeepable::NotReadable(error.to_string()))?;
    let device = |path: &str| std::fs::metadata(path).map(|it| it.dev()).ok();
    let lasting = ["/var", DOMAIN, "/dev", "/proc", "/sys"].map(device);
    let ending = ["/", "/etc", "/usr", "/run"].map(device).into_iter();
    let ending = ending.filter(|it| !lasting.contains(it)).flatten();
    let ending: Vec<String> = ending
        .map(|it| format!("{}:{}", rustix::fs::major(it), rustix::fs::minor(it)))
        .collect();
    match first_on(&table, &ending) {
        Some(at) => Err(NotKeepable::CameAlong(at)),
        None => Ok(()),
    }
}

/// Returns the place of the first mount of one of these devices.
fn first_on(table: &str, devices: &[String]) -> Option<PathBuf> {
    let mut mounts = mounts(table);
    let found = mounts.find(|mount| devices.contains(&mount.device));
    found.map(|mount| mount.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a bind of /proc, the boot id that the generation shows is in the container.
    #[test]
    fn a_mount_that_came_along_is_found() {
        let own = "\
            101 90 0:50 / / rw - overlay overlay rw\n\
            102 101 0:51 / /dev rw - tmpfs tmpfs rw\n\
            103 101 254:2 /mnt/data /data rw - ext4 /dev/vda2 rw\n\
            104 101 0:4 / /host rw - proc proc rw\n";
        let boot_id = "105 104 0:24 /boot_id /host/sys/kernel/random/boot_id ro - tmpfs tmpfs rw\n";
        let ending = ["7:0".to_owned(), "0:24".to_owned()];
        assert_eq!(first_on(own, &ending), None);
        assert_eq!(
            first_on(&[own, boot_id].concat(), &ending),
            Some("/host/sys/kernel/random/boot_id".into())
        );
    }

    #[test]
    fn the_mounts_of_this_process_can_be_read() {
        let own = mounts_are_keepable(std::process::id());
        assert!(!matches!(own, Err(NotKeepable::NotReadable(_))), "{own:?}");
        let none = mounts_are_keepable(u32::MAX);
        assert!(matches!(none, Err(NotKeepable::NotReadable(_))), "{none:?}");
    }
}
