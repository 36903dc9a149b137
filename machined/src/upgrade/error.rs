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
    /// Reboot even if that is not needed.
    pub reboot: bool,
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
    /// Something of the machine itself.
    #[error("the machine could not look at itself")]
    Machine(#[source] anyhow::Error),
}
