//! What is asked of an upgrade, and why it is not begun.

use super::check::Refusal;
use crate::containers::{PullError, ReferenceError};
use crate::machine::Busy;

/// An upgrade as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeRequest {
    /// The installer image.
    pub image: String,
    /// Take it even if it failed here before.
    pub force: bool,
    /// How the new version comes to run.
    pub mode: UpgradeMode,
}

/// How a new version comes to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UpgradeMode {
    /// Without a reboot where kernel and init are the same.
    #[default]
    Quickest,
    /// By a reboot through the firmware, even if that is not needed.
    Reboot,
    /// By a reboot past the firmware, even if that is not needed.
    Kexec,
}

/// Why an upgrade was not begun. Nothing has changed when this is said.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Another sequence is running.
    #[error("the upgrade cannot begin now")]
    Busy(#[from] Busy),
    /// The image's name makes no sense.
    #[error("the image's name is unusable")]
    Reference(#[source] ReferenceError),
    /// The image could not be had, or it is damaged or hostile.
    #[error("the image could not be pulled")]
    Pull(#[from] PullError),
    /// The image is not for this machine as it is.
    #[error("the upgrade was refused")]
    Refused(#[from] Refusal),
    /// Nothing is kept for the next boot.
    #[error(
        "this machine does not boot from its disk, so it keeps no version for its next boot; upgrade without staging"
    )]
    NotInstalled,
    /// The version was not written; what was there is still there.
    #[error("the version could not be staged")]
    NotStaged(#[source] anyhow::Error),
    /// Something of the machine itself.
    #[error("the machine could not look at itself")]
    Machine(#[source] anyhow::Error),
}
