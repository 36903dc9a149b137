//! The machine's files that are mounted into a container, checked against links that another container may have made.
//!
//! Containers write below /var. A path there may become a link before crun resolves it, and crun follows links with the machine's
//! privileges. So each source is opened first, without following any link, and is compared with the file that crun mounted before
//! anything of the container runs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};
use rustix::io::Errno;
use rustix::process::Pid;

use super::spec::ContainerSpec;

/// The directory that containers may write to. Links elsewhere are the machine's own: /sys is full of them.
const WRITTEN_BY_CONTAINERS: &str = "/var";

/// Why a file of the machine is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    /// The path leads over a symbolic link.
    #[error(
        "{0:?} leads over a symbolic link; name the place that it points to, for links below /var may be a container's"
    )]
    Link(PathBuf),
    /// The source cannot be opened.
    #[error("{path:?} cannot be mounted")]
    Open {
        /// The source.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The source was replaced while the container was made.
    #[error("what was mounted at {destination:?} is not {path:?}, which was exchanged meanwhile")]
    Exchanged {
        /// The source.
        path: PathBuf,
        /// Its path in the container.
        destination: PathBuf,
    },
}

/// The opened sources below /var. They stay open, so that their inode numbers are not reused.
pub(super) struct HostPaths(Vec<HostPath>);

struct HostPath {
    source: PathBuf,
    destination: PathBuf,
    opened: OwnedFd,
}

impl HostPaths {
    /// Opens the sources of a container's mounts.
    pub(super) fn open(spec: &ContainerSpec) -> Result<Self, HostPathError> {
        Self::open_below(Path::new(WRITTEN_BY_CONTAINERS), spec)
    }

    fn open_below(written: &Path, spec: &ContainerSpec) -> Result<Self, HostPathError> {
        let sources = spec
            .sources()
            .filter(|(source, _)| source.starts_with(written));
        let opened = sources.map(|(source, destination)| {
            let opened = openat2(
                CWD,
                &source,
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::NO_SYMLINKS,
            );
            match opened {
                Ok(opened) => Ok(HostPath {
                    source,
                    destination: destination.to_owned(),
                    opened,
                }),
                Err(Errno::LOOP) => Err(HostPathError::Link(source)),
                Err(errno) => Err(HostPathError::Open {
                    path: source,
                    source: errno.into(),
                }),
            }
        });
        opened.collect::<Result<_, _>>().map(HostPaths)
    }

    /// Compares the opened sources with the mounts of a container. Its first process `first` is made and has not been started.
    pub(super) fn compare(&self, first: Pid) -> Result<(), HostPathError> {
        self.compare_below(Path::new(&format!("/proc/{}/root", first.as_raw_nonzero())))
    }

    fn compare_below(&self, root: &Path) -> Result<(), HostPathError> {
        for path in &self.0 {
            let mounted = path.mounted_below(root);
            let is_it = mounted.and_then(|mounted| Ok(is_same(&fstat(&path.opened)?, &mounted)));
            match is_it {
                Ok(true) => {}
                Ok(false) => {
                    return Err(HostPathError::Exchanged {
                        path: path.source.clone(),
                        destination: path.destination.clone(),
                    });
                }
                Err(errno) => {
                    return Err(HostPathError::Open {
                        path: path.source.clone(),
                        source: errno.into(),
                    });
                }
            }
        }
        Ok(())
    }
}

impl HostPath {
    fn mounted_below(&self, root: &Path) -> Result<Stat, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = openat2(
            CWD,
            root,
            flags | OFlags::DIRECTORY,
            Mode::empty(),
            ResolveFlags::empty(),
        )?;
        // Links of the image resolve within the container, so they are allowed.
        let mounted = openat2(
            &root,
            &self.destination,
            flags,
            Mode::empty(),
            ResolveFlags::IN_ROOT,
        )?;
        fstat(mounted)
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::values::{Mount, MountSource};

    fn mounting(source: &Path) -> ContainerSpec {
        let mut spec = ContainerSpec::new("web".parse().unwrap(), "/web".into());
        spec.mounts.push(Mount {
            source: MountSource::HostPath(source.to_str().unwrap().parse().unwrap()),
            destination: "/data".parse().unwrap(),
            options: Vec::new(),
        });
        spec
    }

    #[test]
    fn no_link_of_a_container_is_followed() {
        let var = tempfile::tempdir().unwrap();
        let var = fs::canonicalize(var.path()).unwrap();
        fs::create_dir_all(var.join("data/public")).unwrap();
        symlink("/", var.join("data/root")).unwrap();
        symlink("public", var.join("data/near")).unwrap();
        let open = |name: &str| HostPaths::open_below(&var, &mounting(&var.join(name)));
        assert_eq!(open("data/public").unwrap().0.len(), 1);
        for link in ["data/root", "data/root/etc", "data/near"] {
            assert!(matches!(open(link), Err(HostPathError::Link(_))), "{link}");
        }
        assert!(matches!(open("data/none"), Err(HostPathError::Open { .. })));
        // Links outside /var are not checked.
        let elsewhere =
            HostPaths::open_below(Path::new("/nonexistent"), &mounting(&var.join("data/root")));
        assert!(elsewhere.unwrap().0.is_empty());
    }

    #[test]
    fn what_was_exchanged_meanwhile_is_found_out() {
        let directory = tempfile::tempdir().unwrap();
        let var = fs::canonicalize(directory.path()).unwrap();
        let root = var.join("root");
        fs::create_dir_all(root.join("data")).unwrap();
        // In the place of a mount: the same directory by another name.
        let same = HostPaths::open_below(&var, &mounting(&root.join("data"))).unwrap();
        same.compare_below(&root).unwrap();
        fs::rename(root.join("data"), var.join("moved")).unwrap();
        fs::create_dir(root.join("data")).unwrap();
        let exchanged = same.compare_below(&root);
        assert!(
            matches!(exchanged, Err(HostPathError::Exchanged { .. })),
            "{exchanged:?}"
        );
        fs::remove_dir(root.join("data")).unwrap();
        assert!(matches!(
            same.compare_below(&root),
            Err(HostPathError::Open { .. })
        ));
    }
}
