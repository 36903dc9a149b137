//! Calls about configs: applies a machine config, and generates a client's.

use std::time::Duration;

use instar_api::machine as wire;
use instar_pki::Role;
use tonic::{Request, Response, Status};

use super::{MachineApi, Reply};
use crate::api::{apply_config, caller, changing};
use crate::base::error_chain::chain;
use crate::intent::{NewClient, NewClientError, client_configuration};

pub(super) async fn apply_configuration(
    api: &MachineApi,
    request: Request<wire::ApplyConfigurationRequest>,
) -> Reply<wire::ApplyConfigurationResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::info!("apply-config by {}", caller::peer(&request));
    // apid authorized the caller when the call began; since then the node may have left the state that is open to all.
    if api.machine.config().is_none()
        && !api.machine.is_open()
        && !caller::roles(request.metadata()).contains(&Role::Admin)
    {
        return Err(Status::permission_denied("not authorized"));
    }
    let is_talosctl = caller::is_talosctl(&request);
    let (machine, request) = (api.machine.clone(), request.into_inner());
    let applied =
        changing::to_its_end(
            async move { apply_config::apply(&machine, request, is_talosctl).await },
        );
    let applied = applied.await?;
    Ok(Response::new(wire::ApplyConfigurationResponse {
        messages: vec![wire::ApplyConfiguration {
            metadata,
            ..applied
        }],
    }))
}

pub(super) fn generate_client_configuration(
    api: &MachineApi,
    request: Request<wire::GenerateClientConfigurationRequest>,
) -> Reply<wire::GenerateClientConfigurationResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::info!(
        "a client configuration for {:?} asked for by {}",
        request.get_ref().roles,
        caller::peer(&request)
    );
    let configured = api.machine.config().ok_or_else(|| {
        Status::failed_precondition("there is no machine config yet, and so no authority")
    })?;
    let request = request.into_inner();
    let lifetime = request.crt_ttl.and_then(|ttl| Duration::try_from(ttl).ok());
    let network = api.machine.network.status();
    let endpoints: Vec<String> = network
        .borrow()
        .addresses
        .iter()
        .map(|address| address.address.address().to_string())
        .collect();
    let client = NewClient {
        name: api.machine.hostname(),
        endpoints,
        roles: request
            .roles
            .iter()
            .map(|role| role.as_str().into())
            .collect(),
        lifetime: lifetime.unwrap_or_default(),
    };
    let files = client_configuration(&configured.config, &client).map_err(new_client_status)?;
    let message = wire::GenerateClientConfiguration {
        metadata,
        ca: files.authority.into(),
        crt: files.certificate.into(),
        key: files.key.into(),
        talosconfig: files.config.into(),
    };
    Ok(Response::new(wire::GenerateClientConfigurationResponse {
        messages: vec![message],
    }))
}

fn new_client_status(error: NewClientError) -> Status {
    let text = chain(&error);
    match error {
        NewClientError::NoRole | NewClientError::UnknownRole(_) | NewClientError::Lifetime => {
            Status::invalid_argument(text)
        }
        NewClientError::NoKey => Status::failed_precondition(text),
        NewClientError::Authority(_) | NewClientError::Write(_) => Status::internal(text),
    }
}
