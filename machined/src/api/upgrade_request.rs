//! An upgrade as the API says it: the request that comes, and the status of one that does not begin.

use instar_api::machine as wire;
use instar_api::machine::upgrade_request::RebootMode;
use tonic::Status;

use crate::base::error_chain::chain;
use crate::upgrade::{UpgradeError, UpgradeMode, UpgradeRequest};

/// The upgrade that a request asks for.
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

/// The status that says why it does not begin.
pub(super) fn status(error: UpgradeError) -> Status {
    let text = chain(&error);
    match error {
        UpgradeError::Busy(_)
        | UpgradeError::Refused(_)
        | UpgradeError::Pull(_)
        | UpgradeError::NotInstalled
        | UpgradeError::NowhereToKeep(_) => Status::failed_precondition(text),
        UpgradeError::Interrupted(_) => Status::aborted(text),
        UpgradeError::Reference(_) => Status::invalid_argument(text),
        UpgradeError::NotStaged(_) | UpgradeError::Machine(_) => Status::internal(text),
    }
}
