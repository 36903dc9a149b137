//! Calls that start a sequence of the whole machine.

use instar_api::machine as wire;
use instar_api::machine::reboot_request::Mode;
use tonic::{Request, Response, Status};

use super::{MachineApi, Reply};
use crate::api::changing::busy;
use crate::api::{caller, changing, reset, upgrade_request};
use crate::base::error_chain::chain;
use crate::sequences::{self, RollbackBy, Urgency};

pub(super) async fn upgrade(
    api: &MachineApi,
    request: Request<wire::UpgradeRequest>,
) -> Reply<wire::UpgradeResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let peer = caller::peer(&request).to_owned();
    let is_talosctl = caller::is_talosctl(&request);
    upgrade_request::check_force(request.metadata(), request.get_ref().force)?;
    let request = request.into_inner();
    tracing::info!("upgrade to {} asked for by {peer}", request.image);
    // talosctl leaves `preserve` out unless its user sets it, and current Talos versions keep the data either way.
    let kept = match request.preserve {
        true => "",
        false => "; what is on EPHEMERAL is kept, as with preserve (reset erases it)",
    };
    let wanted = upgrade_request::wanted(&request)?;
    let machine = api.machine.clone();
    let started = changing::told_of_its_caller(|caller| async move {
        if !request.stage {
            let started = sequences::upgrade(machine, wanted, caller).await;
            let actor = started.map_err(upgrade_request::status)?;
            return Ok(("Upgrade request received".to_owned(), actor));
        }
        let staged = sequences::stage(&machine, wanted, caller).await;
        let (staged, lock) = staged.map_err(upgrade_request::status)?;
        let ack = format!("{} is staged; {}", staged.version, staged.start());
        // talosctl takes this actor for the beginning of a reboot, as in Talos, and waits for the reboot's end.
        let actor = match is_talosctl {
            true => sequences::reboot_holding(&machine, lock),
            false => staged.actor,
        };
        Ok((ack, actor))
    });
    let (ack, actor) = started.await?;
    let ack = ack + kept;
    let message = wire::Upgrade {
        metadata,
        ack,
        actor_id: actor.0,
    };
    Ok(Response::new(wire::UpgradeResponse {
        messages: vec![message],
    }))
}

pub(super) async fn reboot(
    api: &MachineApi,
    request: Request<wire::RebootRequest>,
) -> Reply<wire::RebootResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::info!("reboot asked for by {}", caller::peer(&request));
    let actor = match reboot_mode(request.get_ref())? {
        Mode::Kexec => {
            let machine = api.machine.clone();
            changing::to_its_end(async move {
                let started = sequences::reboot_by_kexec(&machine).await;
                started.map_err(|error| Status::failed_precondition(chain(&error)))
            })
            .await?
        }
        Mode::Default => sequences::reboot_quickest(&api.machine).map_err(busy)?,
        Mode::Powercycle => sequences::reboot(&api.machine, Urgency::Waits).map_err(busy)?,
        Mode::Force => sequences::reboot(&api.machine, Urgency::Force).map_err(busy)?,
    };
    let message = wire::Reboot {
        metadata,
        actor_id: actor.0,
    };
    Ok(Response::new(wire::RebootResponse {
        messages: vec![message],
    }))
}

/// Returns the mode of a reboot; one that this version does not know is refused.
fn reboot_mode(request: &wire::RebootRequest) -> Result<Mode, Status> {
    Mode::try_from(request.mode)
        .map_err(|_| Status::invalid_argument(format!("there is no reboot mode {}", request.mode)))
}

pub(super) fn reset(
    api: &MachineApi,
    request: Request<wire::ResetRequest>,
) -> Reply<wire::ResetResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::warn!("reset asked for by {}", caller::peer(&request));
    let started = reset::reset(&api.machine, request.get_ref())?;
    Ok(Response::new(wire::ResetResponse {
        messages: vec![wire::Reset {
            metadata,
            ..started
        }],
    }))
}

pub(super) async fn rollback(
    api: &MachineApi,
    request: Request<wire::RollbackRequest>,
) -> Reply<wire::RollbackResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::warn!("rollback asked for by {}", caller::peer(&request));
    let machine = api.machine.clone();
    let by = RollbackBy::Person {
        force: request.get_ref().force,
    };
    changing::to_its_end(async move {
        let started = sequences::rollback(&machine, by).await;
        started.map_err(|error| Status::failed_precondition(chain(&error)))
    })
    .await?;
    Ok(Response::new(wire::RollbackResponse {
        messages: vec![wire::Rollback { metadata }],
    }))
}

pub(super) fn shutdown(
    api: &MachineApi,
    request: Request<wire::ShutdownRequest>,
) -> Reply<wire::ShutdownResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::info!("shutdown asked for by {}", caller::peer(&request));
    let urgency = match request.get_ref().force {
        true => Urgency::Force,
        false => Urgency::Waits,
    };
    let actor = sequences::shutdown(&api.machine, urgency).map_err(busy)?;
    let message = wire::Shutdown {
        metadata,
        actor_id: actor.0,
    };
    Ok(Response::new(wire::ShutdownResponse {
        messages: vec![message],
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_unknown_reboot_mode_is_refused() {
        let of = |mode| reboot_mode(&wire::RebootRequest { mode });
        assert_eq!(of(2).unwrap(), Mode::Force);
        assert_eq!(of(100).unwrap(), Mode::Kexec);
        assert_eq!(of(3).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
