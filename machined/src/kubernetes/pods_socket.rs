//! The socket by which pods reach the node's API: made in the container of Kubernetes, served by apid.
//!
//! The decision: it lies in the container's own /run, in memory. Below /var it would hold the filesystem of the disk in use for as long as apid
//! runs, and a mount of its own would make the container another one, whose pods end with the upgrade that brings it.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, mkdirat, statat, unlinkat};
use rustix::io::Errno;

use super::container_root::{container_root, open_directory};
use crate::services::Cgroup;

/// The directory of the socket, below /run of the container.
const DIRECTORY: &str = "instar";
/// The socket's name there. docs/kubernetes.md names both.
const NAME: &str = "api.sock";

/// A listening socket for pods; clones share it.
#[derive(Debug, Clone)]
pub struct PodsSocket {
    listener: Arc<OwnedFd>,
    /// The first process of the container that it was made in.
    container: u32,
}

impl AsFd for PodsSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The socket that a look at the container has found.
pub enum FoundSocket {
    /// That of before is still there, or the container has ended.
    AsBefore,
    /// The one that was left is the container's.
    Left(PodsSocket),
    /// None that anybody serves.
    Nothing,
}

impl PodsSocket {
    /// Looks for the socket in the container with this first process, which runs in this cgroup. `left`: the one that the generation before, or
    /// the machined before, has left, which goes on if its container does. Blocks.
    ///
    /// # Errors
    /// The container's files cannot be reached, or are not as they should be.
    pub fn find(
        before: Option<&Self>,
        left: Option<OwnedFd>,
        container: u32,
        cgroup: &Cgroup,
    ) -> io::Result<FoundSocket> {
        let Some(root) = container_root(container, cgroup)? else {
            return Ok(FoundSocket::AsBefore);
        };
        if before.is_some_and(|before| before.container == container) && is_there(&root) {
            return Ok(FoundSocket::AsBefore);
        }
        Ok(match left_in(&root, left) {
            None => FoundSocket::Nothing,
            Some(left) => FoundSocket::Left(PodsSocket {
                listener: Arc::new(left),
                container,
            }),
        })
    }

    /// Makes the socket in such a container; `None` if it has ended. Blocks.
    ///
    /// # Errors
    /// The container's files cannot be reached, or are not as they should be.
    pub fn make(container: u32, cgroup: &Cgroup) -> io::Result<Option<Self>> {
        let Some(root) = container_root(container, cgroup)? else {
            return Ok(None);
        };
        Ok(Some(PodsSocket {
            listener: Arc::new(listen(&root)?),
            container,
        }))
    }
}

/// Opens a directory to work below it.
fn open(at: impl AsFd, path: &str, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    open_directory(at, path, OFlags::PATH, resolve)
}

/// Opens /run of a container. No link is followed: a pod may have put it there.
fn open_run(root: &OwnedFd) -> io::Result<OwnedFd> {
    open(
        root,
        "run",
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
}

/// Opens the directory of the socket. It is no link, and no mount of a pod.
fn open_own(run: &OwnedFd) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    open(run, DIRECTORY, resolve)
}

fn is_there(root: &OwnedFd) -> bool {
    let directory = open_run(root).and_then(|run| open_own(&run));
    directory.is_ok_and(|directory| {
        let found = statat(directory, NAME, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket)
    })
}

/// Returns the socket that was left, if its name is still there: in another container it is not.
fn left_in(root: &OwnedFd, left: Option<OwnedFd>) -> Option<OwnedFd> {
    left.filter(|_| is_there(root))
}

/// Makes the listening socket below /run of this root; one that is left of another generation is replaced.
fn listen(root: &OwnedFd) -> io::Result<OwnedFd> {
    let run = open_run(root)?;
    match mkdirat(&run, DIRECTORY, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let directory = open_own(&run)?;
    match unlinkat(&directory, NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let path = format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd());
    Ok(UnixListener::bind(path)?.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::CWD;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    fn root_of(path: &Path) -> OwnedFd {
        open(CWD, path.to_str().unwrap(), ResolveFlags::empty()).unwrap()
    }

    #[test]
    fn it_is_made_for_root_alone_and_made_anew() {
        let container = tempfile::tempdir().unwrap();
        fs::create_dir(container.path().join("run")).unwrap();
        let root = root_of(container.path());
        assert!(!is_there(&root));
        let first = listen(&root).unwrap();
        assert!(is_there(&root));
        let directory = container.path().join("run/instar");
        let mode = fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let socket = directory.join("api.sock");
        UnixStream::connect(&socket).unwrap();
        drop(first);
        UnixStream::connect(&socket).unwrap_err();
        let _second = listen(&root).unwrap();
        UnixStream::connect(&socket).unwrap();
    }

    #[test]
    fn one_that_was_left_goes_on_in_its_container_alone() {
        let (container, another) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for root in [&container, &another] {
            fs::create_dir(root.path().join("run")).unwrap();
        }
        let root = root_of(container.path());
        let of_before = listen(&root).unwrap();
        let left = of_before.try_clone().unwrap();
        drop(of_before);
        // Who connects while generations change waits in it.
        let socket = container.path().join("run/instar/api.sock");
        let _waiting = UnixStream::connect(&socket).unwrap();
        let taken = left_in(&root, Some(left)).unwrap();
        let taken = UnixListener::from(taken);
        taken.accept().unwrap();

        assert!(left_in(&root_of(another.path()), Some(taken.into())).is_none());
        // It is closed.
        UnixStream::connect(&socket).unwrap_err();
        assert!(left_in(&root, None).is_none());
    }

    #[test]
    fn links_of_pods_lead_nowhere() {
        let (container, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = container.path().join("run");
        fs::create_dir(&run).unwrap();
        symlink(elsewhere.path(), run.join("instar")).unwrap();
        let root = root_of(container.path());
        listen(&root).unwrap_err();
        fs::remove_file(run.join("instar")).unwrap();
        fs::remove_dir(&run).unwrap();
        symlink(elsewhere.path(), &run).unwrap();
        listen(&root).unwrap_err();
        assert!(fs::read_dir(elsewhere.path()).unwrap().next().is_none());
    }
}
