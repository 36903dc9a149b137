//! Calls about containers: list and restart.

use instar_api::common::ContainerDriver;
use instar_api::machine as wire;
use tonic::{Request, Response, Status};

use super::services::restart_service;
use super::{MachineApi, Reply};
use crate::api::caller::{self, Holder};
use crate::api::caller_credentials::CallerCredentials;
use crate::api::{blocking, container_facts, containers};

pub(super) async fn containers(
    api: &MachineApi,
    request: Request<wire::ContainersRequest>,
) -> Reply<wire::ContainersResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let request = request.get_ref();
    let found = containers_of(api, &holder, &request.namespace, request.driver());
    let message = wire::Container {
        metadata,
        containers: found.await?.iter().map(containers::info).collect(),
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
    let found = containers_of(api, &holder, &request.namespace, request.driver());
    let message = wire::Stats {
        metadata,
        stats: found.await?.iter().map(containers::stat).collect(),
    };
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
    let containers = containers_of(api, &holder, &request.namespace, request.driver());
    if !containers.await?.iter().any(|it| it.name == request.id) {
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

async fn containers_of(
    api: &MachineApi,
    holder: &Holder,
    namespace: &str,
    driver: ContainerDriver,
) -> Result<Vec<container_facts::ContainerFacts>, Status> {
    if !containers::are_meant(namespace, driver) {
        return Ok(Vec::new());
    }
    let machine = api.machine.clone();
    blocking::once(holder, move || container_facts::containers(&machine)).await
}
