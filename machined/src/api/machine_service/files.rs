//! Calls about the node's files.

use instar_api::common::Data;
use instar_api::machine as wire;
use tonic::Request;
use tonic::codegen::BoxStream;

use super::{MachineApi, Reply};
use crate::api::caller::{self, Holder};
use crate::api::{files, streamed};

pub(super) async fn read(
    api: &MachineApi,
    request: Request<wire::ReadRequest>,
) -> Reply<BoxStream<Data>> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let reading = api.machine.disk.readers().enter();
    Ok(streamed(
        files::read(request.into_inner().path, holder, reading, metadata).await?,
    ))
}

pub(super) async fn list(
    api: &MachineApi,
    request: Request<wire::ListRequest>,
) -> Reply<BoxStream<wire::FileInfo>> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let reading = api.machine.disk.readers().enter();
    Ok(streamed(
        files::list(request.into_inner(), holder, reading, metadata).await?,
    ))
}

pub(super) async fn copy(
    api: &MachineApi,
    request: Request<wire::CopyRequest>,
) -> Reply<BoxStream<Data>> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let reading = api.machine.disk.readers().enter();
    Ok(streamed(
        files::copy(request.into_inner().root_path, holder, reading, metadata).await?,
    ))
}

pub(super) async fn disk_usage(
    api: &MachineApi,
    request: Request<wire::DiskUsageRequest>,
) -> Reply<BoxStream<wire::DiskUsageInfo>> {
    let metadata = caller::reply_metadata(request.metadata());
    let holder = Holder::of(&request);
    let reading = api.machine.disk.readers().enter();
    Ok(streamed(
        files::disk_usage(request.into_inner(), holder, reading, metadata).await?,
    ))
}
