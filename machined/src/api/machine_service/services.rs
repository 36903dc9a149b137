//! Calls about services: list, start, stop.

use std::sync::Arc;

use instar_api::machine as wire;
use tonic::{Request, Response, Status};

use super::{MachineApi, Reply};
use crate::api::caller_credentials::CallerCredentials;
use crate::api::{caller, changing, service_list};
use crate::base::error_chain::chain;
use crate::kubernetes::KubernetesFact;
use crate::machine::Machine;
use crate::operation_lock::Operation;
use crate::sequences::kubernetes;
use crate::services::ControlError;

pub(super) fn service_list(
    api: &MachineApi,
    request: Request<()>,
) -> Reply<wire::ServiceListResponse> {
    let message = wire::ServiceList {
        metadata: caller::reply_metadata(request.metadata()),
        services: service_list::rows(&api.machine),
    };
    Ok(Response::new(wire::ServiceListResponse {
        messages: vec![message],
    }))
}

pub(super) async fn service_start(
    api: &MachineApi,
    request: Request<wire::ServiceStartRequest>,
) -> Reply<wire::ServiceStartResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let id = &request.get_ref().id;
    let (services, name) = (api.machine.services.clone(), id.clone());
    changing::alone(
        &api.machine,
        CallerCredentials::of(&request),
        Operation::ServiceStart,
        async move { services.start(&name).map_err(control_status) },
    )
    .await?;
    let message = wire::ServiceStart {
        metadata,
        resp: format!("Service {id:?} started"),
    };
    Ok(Response::new(wire::ServiceStartResponse {
        messages: vec![message],
    }))
}

pub(super) async fn service_stop(
    api: &MachineApi,
    request: Request<wire::ServiceStopRequest>,
) -> Reply<wire::ServiceStopResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let id = &request.get_ref().id;
    let (services, name) = (api.machine.services.clone(), id.clone());
    // It may take as long as the container's time to end: a reboot by force ends the container at once.
    changing::giving_way(
        &api.machine,
        CallerCredentials::of(&request),
        Operation::ServiceStop,
        async move { services.stop(&name).await.map_err(control_status) },
    )
    .await?;
    let message = wire::ServiceStop {
        metadata,
        resp: format!("Service {id:?} stopped"),
    };
    Ok(Response::new(wire::ServiceStopResponse {
        messages: vec![message],
    }))
}

pub(super) async fn service_restart(
    api: &MachineApi,
    request: Request<wire::ServiceRestartRequest>,
) -> Reply<wire::ServiceRestartResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let id = &request.get_ref().id;
    restart_service(api, id, CallerCredentials::of(&request)).await?;
    let message = wire::ServiceRestart {
        metadata,
        resp: format!("Service {id:?} restarted"),
    };
    Ok(Response::new(wire::ServiceRestartResponse {
        messages: vec![message],
    }))
}

pub(super) async fn restart_service(
    api: &MachineApi,
    id: &str,
    credentials: Option<CallerCredentials>,
) -> Result<(), Status> {
    let (machine, id) = (api.machine.clone(), id.to_owned());
    changing::to_its_end(async move {
        if is_of_node(&machine, &id) {
            return restart_of_node(&machine, credentials, id).await;
        }
        let services = machine.services.clone();
        // Renew while the service still runs: a failed renewal does not end it, and other operations are not held up.
        services.renew(&id).await.map_err(control_status)?;
        changing::alone(
            &machine,
            credentials,
            Operation::ServiceRestart,
            async move { services.restart(&id).await.map_err(control_status) },
        )
        .await
    })
    .await
}

/// Whether a service runs in the container of Kubernetes.
fn is_of_node(machine: &Machine, id: &str) -> bool {
    let nodes = machine.store.list::<KubernetesFact>();
    let mut services = nodes.iter().flat_map(|(_, fact)| &fact.services);
    services.any(|service| service.name == id)
}

async fn restart_of_node(
    machine: &Arc<Machine>,
    credentials: Option<CallerCredentials>,
    id: String,
) -> Result<(), Status> {
    let node = machine.clone();
    changing::alone(
        machine,
        credentials,
        Operation::ServiceRestart,
        async move {
            let restarted = kubernetes::restart_service(&node, &id).await;
            restarted.map_err(|error| Status::internal(format!("{error:#}")))
        },
    )
    .await
}

fn control_status(error: ControlError) -> Status {
    let text = chain(&error);
    match error {
        ControlError::Unknown(_) => Status::not_found(text),
        ControlError::NotControllable { .. }
        | ControlError::Held { .. }
        | ControlError::NotRenewed { .. } => Status::failed_precondition(text),
        ControlError::NotStopped { .. } => Status::aborted(text),
    }
}
