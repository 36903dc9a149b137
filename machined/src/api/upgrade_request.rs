//! Conversions for upgrades: the request, and the status if the upgrade does not begin.

use instar_api::machine as wire;
use instar_api::machine::upgrade_request::RebootMode;
use instar_pki::Role;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::caller;

use crate::base::error_chain::chain;
use crate::upgrade::{UpgradeError, UpgradeMode, UpgradeRequest};

/// Converts the request of the API. A mode that this version does not know is refused: the usual one may do what its caller rules out.
pub(super) fn wanted(request: &wire::UpgradeRequest) -> Result<UpgradeRequest, Status> {
    let mode = RebootMode::try_from(request.reboot_mode).map_err(|_| {
        Status::invalid_argument(format!("there is no reboot mode {}", request.reboot_mode))
    })?;
    Ok(UpgradeRequest {
        image: request.image.clone(),
        force: request.force,
        mode: match mode {
            RebootMode::Default => UpgradeMode::Quickest,
            RebootMode::Powercycle => UpgradeMode::Reboot,
            RebootMode::Kexec => UpgradeMode::Kexec,
        },
    })
}

/// Checks that the caller may override the rules between releases, if it wants to: whoever may only upgrade is bound by them.
pub(super) fn check_force(metadata: &MetadataMap, force: bool) -> Result<(), Status> {
    match !force || caller::roles(metadata).contains(&Role::Admin) {
        true => Ok(()),
        false => Err(Status::permission_denied("force needs the role os:admin")),
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
        | UpgradeError::NothingToReplace
        | UpgradeError::NowhereToKeep(_) => Status::failed_precondition(text),
        UpgradeError::NoRoom(..) | UpgradeError::TooManyPins(_) => Status::resource_exhausted(text),
        UpgradeError::Interrupted(_) | UpgradeError::CallerLeft => Status::aborted(text),
        UpgradeError::Reference(_) => Status::invalid_argument(text),
        UpgradeError::NotStaged(_) | UpgradeError::Machine(_) => Status::internal(text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_unknown_reboot_mode_is_refused() {
        let of = |reboot_mode| {
            let request = wire::UpgradeRequest {
                reboot_mode,
                ..wire::UpgradeRequest::default()
            };
            wanted(&request).map(|wanted| wanted.mode)
        };
        assert_eq!(of(1).unwrap(), UpgradeMode::Reboot);
        assert_eq!(of(2).unwrap_err().code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn only_an_administrator_overrides_the_rules() {
        let may = |roles: &str, force| {
            let mut metadata = MetadataMap::new();
            metadata.insert(caller::ROLES, roles.parse().unwrap());
            check_force(&metadata, force).is_ok()
        };
        assert!(may("os:admin", true) && may("os:upgrader,os:admin", true));
        assert!(may("os:upgrader", false));
        assert!(!may("os:upgrader", true) && !may("", true));
    }
}
