//! Calls about containers: list and restart.

use instar_api::machine as wire;
use tonic::{Request, Response, Status};

use super::services::restart_service;
use super::{MachineApi, Reply};
use crate::api::blocking;
use crate::api::caller::{self, Holder};
use crate::api::caller_credentials::CallerCredentials;
use crate::api::container_facts::{self, ContainerFacts};
use crate::api::containers::{self, Meant, meant};
use crate::api::pod_facts::{self, PodFacts};

pub(super) async fn containers(
    api: &MachineApi,
    request: Request<wire::ContainersRequest>,
) -> Reply<wire::ContainersResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let request = request.get_ref();
    let containers = match meant(&request.namespace, request.driver()) {
        Meant::Own => own(api, &holder)
            .await?
            .iter()
            .map(containers::info)
            .collect(),
        Meant::OfPods => of_pods(&holder)
            .await?
            .iter()
            .map(pod_facts::info)
            .collect(),
        Meant::None => Vec::new(),
    };
    let message = wire::Container {
        metadata,
        containers,
    };
    Ok(Response::new(wire::ContainersResponse {
        messages: vec![message],
    }))
}

pub(super) async fn stats(
    api: &MachineApi,
    request: Request<wire::StatsRequest>,
) -> Reply<wire::StatsResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let request = request.get_ref();
    let stats = match meant(&request.namespace, request.driver()) {
        Meant::Own => own(api, &holder)
            .await?
            .iter()
            .map(containers::stat)
            .collect(),
        Meant::OfPods => of_pods(&holder)
            .await?
            .iter()
            .map(pod_facts::stat)
            .collect(),
        Meant::None => Vec::new(),
    };
    let message = wire::Stats { metadata, stats };
    Ok(Response::new(wire::StatsResponse {
        messages: vec![message],
    }))
}

pub(super) async fn restart(
    api: &MachineApi,
    request: Request<wire::RestartRequest>,
) -> Reply<wire::RestartResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let (holder, credentials) = (Holder::of(&request), CallerCredentials::of(&request));
    let request = request.get_ref();
    let containers = match meant(&request.namespace, request.driver()) {
        Meant::Own => own(api, &holder).await?,
        // kubelet restarts them.
        Meant::OfPods | Meant::None => Vec::new(),
    };
    if !containers.iter().any(|it| it.name == request.id) {
        return Err(Status::not_found(format!(
            "there is no container {:?}; the list of containers has the names",
            request.id
        )));
    }
    restart_service(api, &request.id, credentials).await?;
    Ok(Response::new(wire::RestartResponse {
        messages: vec![wire::Restart { metadata }],
    }))
}

async fn of_pods(holder: &Holder) -> Result<Vec<PodFacts>, Status> {
    blocking::once(holder, pod_facts::of_pods).await
}

async fn own(api: &MachineApi, holder: &Holder) -> Result<Vec<ContainerFacts>, Status> {
    let machine = api.machine.clone();
    blocking::once(holder, move || container_facts::containers(&machine)).await
}
