//! The request for an upgrade, and the reasons to refuse it.

use super::check::Refusal;
use super::rootfs_trust::Untrusted;
use crate::oci::{NoRoom, PullError};
use crate::operation_lock::{Busy, Interrupted};
use crate::pins::TooMany;
use crate::values::ReferenceError;

/// A request for an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeRequest {
    /// The installer image.
    pub image: String,
    /// Take it even if it failed here before.
    pub force: bool,
    /// The way to start the new version.
    pub mode: UpgradeMode,
}

/// The way to start a new version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UpgradeMode {
    /// Without a reboot if kernel and init are the same.
    #[default]
    Quickest,
    /// By a reboot through the firmware, even if that is not needed.
    Reboot,
    /// By a reboot past the firmware, even if that is not needed.
    Kexec,
    /// By a reboot through the firmware, with nothing left on EPHEMERAL.
    Replace,
}

/// Why an upgrade was refused. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Another sequence is running.
    #[error("the upgrade cannot begin now")]
    Busy(#[from] Busy),
    /// A more urgent operation has interrupted it.
    #[error("there is no upgrade")]
    Interrupted(#[from] Interrupted),
    /// Its caller hung up before it changed anything.
    #[error("there is no upgrade: its caller left before the image was here")]
    CallerLeft,
    /// The image's name is invalid.
    #[error("the image's name is unusable")]
    Reference(#[source] ReferenceError),
    /// The image could not be pulled, or is damaged or hostile.
    #[error("the image could not be pulled")]
    Pull(#[from] PullError),
    /// The image does not fit this machine.
    #[error("the upgrade was refused")]
    Refused(#[from] Refusal),
    /// Nobody whom this machine trusts has signed the root filesystem.
    #[error("the upgrade was refused")]
    Untrusted(#[from] Untrusted),
    /// The machine cannot keep a version for the next boot.
    #[error(
        "this machine does not boot from its disk, so it keeps no version for its next boot; upgrade without staging"
    )]
    NotInstalled,
    /// The next boot would not start the image.
    #[error(
        "this machine does not boot from its disk, so no image on it can replace what runs; reset erases its data"
    )]
    NothingToReplace,
    /// The machine cannot keep a version for the next boot, and only a boot could start this one.
    #[error(
        "only a reboot can start this version ({0}), and this machine does not boot from its disk: there is nowhere to keep it; upgrade in one step, or boot the machine with it"
    )]
    NowhereToKeep(&'static str),
    /// There is no room for the images of an upgrade that is to be prepared ahead.
    #[error(
        "there is no room for the {0} images of the upgrade: {1}; unpin or remove an image, or files of a user volume, or take a larger disk"
    )]
    NoRoom(usize, NoRoom),
    /// Too many images are pinned.
    #[error(transparent)]
    TooManyPins(TooMany),
    /// The version was not written; the one that was there is unchanged.
    #[error("the version could not be prepared")]
    NotStaged(#[source] anyhow::Error),
    /// The machine could not read its own state.
    #[error("the machine could not look at itself")]
    Machine(#[source] anyhow::Error),
}

/// Exit codes of installers (docs/contracts.md; only machined uses 3 and 5).
const UNKNOWN: i32 = 1;
const BAD_INPUT: i32 = 2;
const UNSUPPORTED: i32 = 3;
const ENVIRONMENT: i32 = 4;
const DEPENDENCY: i32 = 5;
const INSTALL_FAILED: i32 = 7;

impl UpgradeError {
    /// Returns the installer's exit code for this error.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Reference(_) | Self::Refused(Refusal::NoLabel(_) | Refusal::BadLabel { .. }) => {
                BAD_INPUT
            }
            Self::Refused(Refusal::WrongArchitecture { .. } | Refusal::WrongProtocol { .. }) => {
                UNSUPPORTED
            }
            Self::Busy(_)
            | Self::Interrupted(_)
            | Self::CallerLeft
            | Self::Refused(_)
            | Self::Untrusted(_)
            | Self::NotInstalled
            | Self::NothingToReplace
            | Self::NoRoom(..)
            | Self::TooManyPins(_)
            | Self::NowhereToKeep(_) => ENVIRONMENT,
            Self::Pull(_) => DEPENDENCY,
            Self::NotStaged(_) => INSTALL_FAILED,
            Self::Machine(_) => UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::operation_lock::Operation;

    #[test]
    fn a_refusal_is_never_a_success() {
        let wrong = Refusal::WrongArchitecture {
            image: "arm64".to_owned(),
            machine: "amd64".to_owned(),
        };
        let full = Refusal::NotEnoughRoom {
            needed: 2,
            available: 1,
            inodes: 0,
            memory_needed: 2,
            memory: 1,
        };
        let busy = Busy {
            operation: Operation::Reboot,
            running_for: Duration::ZERO,
            interruptible: false,
        };
        for (error, code) in [
            (UpgradeError::Busy(busy), 4),
            (UpgradeError::Refused(Refusal::NoLabel("a")), 2),
            (UpgradeError::Refused(wrong), 3),
            (UpgradeError::CallerLeft, 4),
            (UpgradeError::Refused(full), 4),
            (UpgradeError::NowhereToKeep("another kernel"), 4),
            (UpgradeError::NotStaged(anyhow::anyhow!("the disk")), 7),
            (UpgradeError::Machine(anyhow::anyhow!("the disk")), 1),
        ] {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }
}
