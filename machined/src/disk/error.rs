//! The error of mounting, unmounting and erasing the machine's disk.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use super::apply::ApplyError;
use super::discover::{DevPath, DiscoverError};
use super::layout::Label;
use super::plan::PlanError;
use super::probe::{ProbeError, Signature};
use super::selector::SelectError;
use super::tools::ToolError;
use super::wipe::WipeError;
use crate::base::blocking_io::{self, ANSWER, NoAnswer};

/// Why the machine's disk cannot be mounted, unmounted or erased.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum OwnedDiskError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Wipe(#[from] WipeError),
    #[error("this machine owns no disk; there is nothing on it to wipe")]
    NoDisk,
    /// More than one disk has a STATE partition, and a machine has one.
    #[error(
        "{} each hold a STATE partition of Instar's; take all but one out, or name the one to use in the config", list(.0)
    )]
    Several(Vec<DevPath>),
    /// The config's disk carries Instar's partitions, and is not the disk that the machine has.
    #[error(
        "the config names {named}, which has Instar's partitions, but this machine has {} for its own: name that one in the config, or erase the other one", own.display()
    )]
    NotThisMachines { named: DevPath, own: PathBuf },
    /// A partition holds a known format other than ext4.
    #[error(
        "the {label} partition {} holds {found} instead of ext4; wipe the disk to make it anew", device.display()
    )]
    Content {
        label: Label,
        device: PathBuf,
        found: Signature,
    },
    /// A partition holds data of an unknown format.
    #[error(
        "the {label} partition {} holds data but no superblock of ext4, and {why}; it is left as it is. To give up what is on it, erase it (instarctl reset --system-labels-to-wipe {label})", device.display()
    )]
    Damaged {
        label: Label,
        device: PathBuf,
        why: String,
    },
    #[error("cannot write to the {label} partition {}", device.display())]
    Write {
        label: Label,
        device: PathBuf,
        source: io::Error,
    },
    #[error("cannot mount {what} at {target}")]
    Mount {
        what: String,
        target: PathBuf,
        source: io::Error,
    },
    /// The filesystem is in use, by containers that live on, and the kernel does not mount it once more.
    #[error(
        "cannot mount {what} at {target} beside those that use it ({holders}); stop them first"
    )]
    MountInUse {
        what: String,
        target: PathBuf,
        holders: String,
        source: io::Error,
    },
    #[error("cannot unmount {target}: {holders}; stop that first")]
    Busy { target: PathBuf, holders: String },
    #[error("cannot unmount {target}")]
    Unmount { target: PathBuf, source: io::Error },
    #[error("{target} is unmounted here, but {holders}; stop that first")]
    StillHeld { target: PathBuf, holders: String },
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
}

impl OwnedDiskError {
    /// Whether those who use the disk may be the reason, so that it can be tried again without them. A disk that is not found, is not the machine's,
    /// or does not answer stays away all the same.
    pub fn may_be_due_to_users(&self) -> bool {
        match self {
            Self::Discover(_)
            | Self::Select(_)
            | Self::Probe(_)
            | Self::Plan(_)
            | Self::NoDisk
            | Self::Several(_)
            | Self::NotThisMachines { .. }
            | Self::Content { .. }
            | Self::NoAnswer(_) => false,
            Self::Apply(_)
            | Self::Tool(_)
            | Self::Wipe(_)
            | Self::Damaged { .. }
            | Self::Write { .. }
            | Self::Mount { .. }
            | Self::MountInUse { .. }
            | Self::Busy { .. }
            | Self::Unmount { .. }
            | Self::StillHeld { .. } => true,
        }
    }

    /// Returns whether the kernel refused to mount because of damage in the filesystem.
    pub(super) fn is_damage(&self) -> bool {
        // Damaged metadata, and a checksum that does not fit.
        let damage = [Errno::UCLEAN, Errno::BADMSG].map(Errno::raw_os_error);
        matches!(self, Self::Mount { source, .. } if source.raw_os_error().is_some_and(|code| damage.contains(&code)))
    }
}

fn list(disks: &[DevPath]) -> String {
    let names: Vec<String> = disks.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

/// Runs blocking disk work on another thread, with a timeout.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OwnedDiskError> {
    Ok(blocking_io::within(ANSWER, work).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Containers that are ended for a disk that stays away could not start again.
    #[test]
    fn only_a_disk_that_is_there_may_be_kept_away_by_its_users() {
        let mount = |errno: Errno| OwnedDiskError::Mount {
            what: "/dev/vda3".to_owned(),
            target: "/var".into(),
            source: errno.into(),
        };
        let in_use = OwnedDiskError::MountInUse {
            what: "/dev/vda3".to_owned(),
            target: "/var".into(),
            holders: "process 7".to_owned(),
            source: Errno::BUSY.into(),
        };
        for (error, may_be) in [
            (in_use, true),
            (mount(Errno::UCLEAN), true),
            (OwnedDiskError::NoDisk, false),
            (OwnedDiskError::Several(Vec::new()), false),
            (OwnedDiskError::NoAnswer(NoAnswer::Late(ANSWER)), false),
        ] {
            assert_eq!(error.may_be_due_to_users(), may_be, "{error}");
        }
    }
}
