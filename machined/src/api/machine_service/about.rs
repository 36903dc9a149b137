//! Calls for facts about the node.

use instar_api::machine as wire;
use tonic::{Request, Response};

use super::{MachineApi, Reply};
use crate::api::caller;

pub(super) fn version(api: &MachineApi, request: Request<()>) -> Reply<wire::VersionResponse> {
    let running = &api.machine.running;
    let message = wire::Version {
        metadata: caller::reply_metadata(request.metadata()),
        version: Some(wire::VersionInfo {
            tag: running.version.clone(),
            os: "linux".to_owned(),
            arch: running.architecture.clone(),
            ..Default::default()
        }),
        platform: Some(wire::PlatformInfo {
            name: "metal".to_owned(),
            mode: "metal".to_owned(),
        }),
        features: Some(wire::FeaturesInfo {
            rbac: api.machine.config().is_some(),
        }),
    };
    Ok(Response::new(wire::VersionResponse {
        messages: vec![message],
    }))
}

pub(super) fn hostname(api: &MachineApi, request: Request<()>) -> Reply<wire::HostnameResponse> {
    let message = wire::Hostname {
        metadata: caller::reply_metadata(request.metadata()),
        hostname: api.machine.hostname(),
    };
    Ok(Response::new(wire::HostnameResponse {
        messages: vec![message],
    }))
}
