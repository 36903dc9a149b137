//! Why the machine's disk is not there, or does not go away.

use std::io;
use std::path::PathBuf;

use super::apply::ApplyError;
use super::discover::{DevPath, DiscoverError};
use super::layout::Label;
use super::plan::PlanError;
use super::probe::{ProbeError, Signature};
use super::selector::SelectError;
use super::tools::ToolError;
use super::wipe::WipeError;
use crate::base::blocking_io::{self, ANSWER, NoAnswer};

/// Why the disk is not there, or does not go away.
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
    /// Two disks could be meant, and a machine has one.
    #[error(
        "{} each hold a STATE partition of Instar's; take all but one out, or name the one to use in the config", list(.0)
    )]
    Several(Vec<DevPath>),
    /// A partition holds something else than its filesystem.
    #[error(
        "the {label} partition {} holds {found} instead of ext4; wipe the disk to make it anew", device.display()
    )]
    Content {
        label: Label,
        device: PathBuf,
        found: Signature,
    },
    /// A partition holds something, and it cannot be found out what.
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
    /// Whether the kernel refused to mount because of what it found in the filesystem.
    pub(super) fn is_damage(&self) -> bool {
        let damage = rustix::io::Errno::UCLEAN.raw_os_error();
        matches!(self, Self::Mount { source, .. } if source.raw_os_error() == Some(damage))
    }
}

fn list(disks: &[DevPath]) -> String {
    let names: Vec<String> = disks.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

/// Does work that waits for the disk, for a limited time.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OwnedDiskError> {
    Ok(blocking_io::within(ANSWER, work).await?)
}
