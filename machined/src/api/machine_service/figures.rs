//! Calls for the kernel's statistics.

use instar_api::machine as wire;
use tonic::{Request, Response, Status};

use super::Reply;
use crate::api::caller::{self, Holder};
use crate::api::{blocking, netstat};
use crate::statistics;

pub(super) fn memory(request: Request<()>) -> Reply<wire::MemoryResponse> {
    let message = wire::Memory {
        metadata: caller::reply_metadata(request.metadata()),
        meminfo: Some(statistics::memory().map_err(internal)?),
    };
    Ok(Response::new(wire::MemoryResponse {
        messages: vec![message],
    }))
}

pub(super) fn load_avg(request: Request<()>) -> Reply<wire::LoadAvgResponse> {
    let message = wire::LoadAvg {
        metadata: caller::reply_metadata(request.metadata()),
        ..statistics::load_average().map_err(internal)?
    };
    Ok(Response::new(wire::LoadAvgResponse {
        messages: vec![message],
    }))
}

pub(super) fn system_stat(request: Request<()>) -> Reply<wire::SystemStatResponse> {
    let message = wire::SystemStat {
        metadata: caller::reply_metadata(request.metadata()),
        ..statistics::system_stat().map_err(internal)?
    };
    Ok(Response::new(wire::SystemStatResponse {
        messages: vec![message],
    }))
}

pub(super) fn cpu_info(request: Request<()>) -> Reply<wire::CpuInfoResponse> {
    let message = wire::CpUsInfo {
        metadata: caller::reply_metadata(request.metadata()),
        cpu_info: statistics::cpu_info().map_err(internal)?,
    };
    Ok(Response::new(wire::CpuInfoResponse {
        messages: vec![message],
    }))
}

pub(super) fn cpu_freq_stats(request: Request<()>) -> Reply<wire::CpuFreqStatsResponse> {
    let message = wire::CpUsFreqStats {
        metadata: caller::reply_metadata(request.metadata()),
        cpu_freq_stats: statistics::cpu_frequencies().map_err(internal)?,
    };
    Ok(Response::new(wire::CpuFreqStatsResponse {
        messages: vec![message],
    }))
}

pub(super) fn network_device_stats(
    request: Request<()>,
) -> Reply<wire::NetworkDeviceStatsResponse> {
    let message = wire::NetworkDeviceStats {
        metadata: caller::reply_metadata(request.metadata()),
        ..statistics::network_device_stats().map_err(internal)?
    };
    Ok(Response::new(wire::NetworkDeviceStatsResponse {
        messages: vec![message],
    }))
}

pub(super) fn disk_stats(request: Request<()>) -> Reply<wire::DiskStatsResponse> {
    let message = wire::DiskStats {
        metadata: caller::reply_metadata(request.metadata()),
        ..statistics::disk_stats().map_err(internal)?
    };
    Ok(Response::new(wire::DiskStatsResponse {
        messages: vec![message],
    }))
}

pub(super) async fn processes(request: Request<()>) -> Reply<wire::ProcessesResponse> {
    let message = wire::Process {
        metadata: caller::reply_metadata(request.metadata()),
        processes: blocking::once(&Holder::of(&request), statistics::processes).await?,
    };
    Ok(Response::new(wire::ProcessesResponse {
        messages: vec![message],
    }))
}

pub(super) async fn mounts(request: Request<()>) -> Reply<wire::MountsResponse> {
    let message = wire::Mounts {
        metadata: caller::reply_metadata(request.metadata()),
        stats: blocking::once(&Holder::of(&request), statistics::mounts).await?,
    };
    Ok(Response::new(wire::MountsResponse {
        messages: vec![message],
    }))
}

pub(super) async fn netstat(
    request: Request<wire::NetstatRequest>,
) -> Reply<wire::NetstatResponse> {
    let holder = Holder::of(&request);
    let query = netstat::query(request.get_ref());
    let message = wire::Netstat {
        metadata: caller::reply_metadata(request.metadata()),
        connectrecord: blocking::once(&holder, move || statistics::sockets(&query)).await?,
    };
    Ok(Response::new(wire::NetstatResponse {
        messages: vec![message],
    }))
}

fn internal(error: anyhow::Error) -> Status {
    Status::internal(format!("{error:#}"))
}
