//! Calls that stream logs, events and packets.

use instar_api::common::Data;
use instar_api::machine as wire;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{MachineApi, Reply};
use crate::api::caller::{self, Holder};
use crate::api::containers::{Meant, meant};
use crate::api::{deadline, events, logs, packet_capture, streamed};
use crate::config_source::Secrets;

pub(super) async fn logs(
    api: &MachineApi,
    request: Request<wire::LogsRequest>,
) -> Reply<BoxStream<Data>> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let request = request.get_ref();
    if meant(&request.namespace, request.driver()) == Meant::OfPods {
        return Ok(streamed(logs::of_pod(request, holder, metadata).await?));
    }
    let log = api.machine.log_of(&request.id).ok_or_else(|| {
        Status::not_found(format!(
            "there is no service {:?}; the list of services has the names",
            request.id
        ))
    })?;
    Ok(streamed(logs::service(
        &log,
        &api.machine,
        request,
        holder,
        metadata,
    )))
}

pub(super) fn logs_containers(
    api: &MachineApi,
    request: Request<()>,
) -> Reply<wire::LogsContainersResponse> {
    let message = wire::LogsContainer {
        metadata: caller::reply_metadata(request.metadata()),
        ids: api.machine.log_names(),
    };
    Ok(Response::new(wire::LogsContainersResponse {
        messages: vec![message],
    }))
}

pub(super) fn dmesg(request: Request<wire::DmesgRequest>) -> Reply<BoxStream<Data>> {
    let metadata = caller::reply_metadata(request.metadata());
    let roles = caller::roles(request.metadata());
    let secrets = Secrets::of(&roles);
    Ok(streamed(logs::kernel(
        request.get_ref(),
        secrets,
        metadata,
    )?))
}

pub(super) fn events(
    api: &MachineApi,
    request: Request<wire::EventsRequest>,
) -> Reply<BoxStream<wire::Event>> {
    let metadata = caller::reply_metadata(request.metadata());
    Ok(streamed(events::stream(
        &api.machine,
        request.into_inner(),
        metadata,
    )?))
}

pub(super) fn packet_capture(
    request: Request<wire::PacketCaptureRequest>,
) -> Reply<BoxStream<Data>> {
    let metadata = caller::reply_metadata(request.metadata());
    let lasts = deadline::of(request.metadata());
    let chunks = packet_capture::stream(request.get_ref(), lasts, metadata)?;
    tracing::info!(
        "packet capture on {} by {}",
        request.get_ref().interface,
        caller::peer(&request)
    );
    Ok(streamed(chunks))
}
