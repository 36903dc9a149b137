//! The hierarchy of cgroups: one for each generation, with machined's own in it, beside that of the workloads.

use crate::failure::{Result, Step};
use rustix::fs::{Mode, OFlags, openat};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";

/// The directory of a generation's cgroup, opened before a mount could hide it.
pub(crate) struct Cgroup(File);

impl Cgroup {
    /// Makes the cgroup of a generation, and machined's in it.
    pub(crate) fn new(number: u64) -> Result<Self> {
        let path = Path::new(CGROUPS).join(format!("generation.{number}"));
        fs::create_dir_all(path.join("machined")).step("make the cgroups")?;
        enable_controllers(&path);
        File::open(path).map(Self).step("open the cgroup")
    }

    pub(crate) fn open(&self, file: &str) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        openat(&self.0, file, flags, Mode::empty()).step(format_args!("open {file}"))
    }

    /// Kills all processes of the cgroup, or of the part that is named with a slash at its end.
    pub(crate) fn kill(&self, part: &str) -> Result<()> {
        let kill = self.open(&format!("{part}cgroup.kill"))?;
        let written = rustix::io::write(kill, b"1");
        written.map(drop).step("kill a cgroup")
    }
}

/// Turns on the controllers for the children of a cgroup. A kernel without one of them still boots.
pub(crate) fn enable_controllers(cgroup: impl AsRef<Path>) {
    for controller in ["+cpu", "+io", "+memory", "+pids"] {
        // Programs that need a missing controller report it.
        let _ = fs::write(cgroup.as_ref().join("cgroup.subtree_control"), controller);
    }
}

/// Removes the cgroups below this one, children first. A cgroup that cannot be removed shows in the fingerprint.
pub(crate) fn remove_cgroups(cgroup: impl AsRef<Path>) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(entry.path());
            // A busy cgroup shows in the comparison with the fingerprint.
            let _ = fs::remove_dir(entry.path());
        }
    }
}
