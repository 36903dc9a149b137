//! The files of the container of Kubernetes, as its first process sees them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::services::Cgroup;

/// Opens the root of the container with this first process, which runs in this cgroup; `None` if the process has ended.
pub(super) fn container_root(container: u32, cgroup: &Cgroup) -> io::Result<Option<OwnedFd>> {
    let root = format!("/proc/{container}/root");
    let root = open_directory(CWD, &root, OFlags::PATH, ResolveFlags::empty())?;
    // Another process may have got the number before its root was opened.
    Ok(cgroup.holds(container).then_some(root))
}

/// Opens a directory.
pub(super) fn open_directory(
    at: impl AsFd,
    path: &str,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat2(at, path, flags, Mode::empty(), resolve)?)
}
