//! Calls about containers: list and restart.

use instar_api::common::ContainerDriver;
use instar_api::machine as wire;
use tonic::{Request, Response, Status};

use super::services::restart_service;
use super::{MachineApi, Reply};
use crate::api::blocking;
use crate::api::caller::{self, Holder};
use crate::api::caller_credentials::CallerCredentials;
use crate::api::container_facts::{self, ContainerFacts};
use crate::api::containers::{Meant, Shown, meant};
use crate::api::pod_facts;

pub(super) async fn containers(
    api: &MachineApi,
    request: Request<wire::ContainersRequest>,
) -> Reply<wire::ContainersResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let request = request.get_ref();
    let shown = shown(api, &holder, &request.namespace, request.driver()).await?;
    let message = wire::Container {
        metadata,
        containers: shown.into_iter().map(|it| it.info).collect(),
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
    let shown = shown(api, &holder, &request.namespace, request.driver()).await?;
    let message = wire::Stats {
        metadata,
        stats: shown.into_iter().map(Shown::into_stat).collect(),
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
    let meant = meant(&request.namespace, request.driver());
    refuse_for_pods(meant, &request.id)?;
    let containers = match meant {
        Meant::Own => own(api, &holder).await?,
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

/// Refuses a restart of a pod's container; it is known by its name as well, which no container of the config may have.
fn refuse_for_pods(meant: Meant, id: &str) -> Result<(), Status> {
    if meant == Meant::OfPods || id.contains('/') {
        return Err(Status::unimplemented(format!(
            "cannot restart {id:?}: kubelet restarts the containers of pods; delete the pod with kubectl"
        )));
    }
    Ok(())
}

/// The containers that a request asks for.
async fn shown(
    api: &MachineApi,
    holder: &Holder,
    namespace: &str,
    driver: ContainerDriver,
) -> Result<Vec<Shown>, Status> {
    Ok(match meant(namespace, driver) {
        Meant::Own => own(api, holder)
            .await?
            .into_iter()
            .map(Shown::from)
            .collect(),
        Meant::OfPods => {
            let of_pods = blocking::once(holder, pod_facts::of_pods).await?;
            of_pods.into_iter().map(Shown::from).collect()
        }
        Meant::None => Vec::new(),
    })
}

async fn own(api: &MachineApi, holder: &Holder) -> Result<Vec<ContainerFacts>, Status> {
    let machine = api.machine.clone();
    blocking::once(holder, move || container_facts::containers(&machine)).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn who_restarts_the_containers_of_pods_is_said() {
        let id = "default/web:web:0123";
        for meant in [Meant::OfPods, Meant::Own] {
            let refused = refuse_for_pods(meant, id).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unimplemented);
            assert!(refused.message().contains("delete the pod"), "{refused}");
        }
        assert!(refuse_for_pods(Meant::Own, "web").is_ok());
    }
}
