//! Conversions for upgrades: the request, and the status if the upgrade does not begin.

use instar_api::machine as wire;
use instar_api::machine::upgrade_request::RebootMode;
use tonic::Status;

use crate::base::error_chain::chain;
use crate::upgrade::{UpgradeError, UpgradeMode, UpgradeRequest};

/// Converts the request of the API.
pub(super) fn wanted(request: &wire::UpgradeRequest) -> UpgradeRequest {
    UpgradeRequest {
        image: request.image.clone(),
        force: request.force,
        mode: match request.reboot_mode() {
            RebootMode::Default => UpgradeMode::Quickest,
            RebootMode::Powercycle => UpgradeMode::Reboot,
            RebootMode::Kexec => UpgradeMode::Kexec,
        },
    }
}

/// Converts the reason why the upgrade does not begin.
pub(super) fn status(error: UpgradeError) -> Status {
    let text = chain(&error);
    match error {
        UpgradeError::Busy(_)
        | UpgradeError::Refused(_)
        | UpgradeError::Pull(_)
        | UpgradeError::Untrusted(_)
        | UpgradeError::NotInstalled
        | UpgradeError::NowhereToKeep(_) => Status::failed_precondition(text),
        UpgradeError::NoRoom(..) | UpgradeError::TooManyPins(_) => Status::resource_exhausted(text),
        UpgradeError::Interrupted(_) => Status::aborted(text),
        UpgradeError::Reference(_) => Status::invalid_argument(text),
        UpgradeError::NotStaged(_) | UpgradeError::Machine(_) => Status::internal(text),
    }
}
