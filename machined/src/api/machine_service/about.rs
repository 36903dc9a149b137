//! Calls for facts about the node.

use instar_api::machine as wire;
use tonic::{Request, Response};

use super::{MachineApi, Reply};
use crate::api::caller;
use crate::machine::Machine;
use crate::upgrade::ReleaseOrigin;

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
        release: Some(release(&api.machine)),
    };
    Ok(Response::new(wire::VersionResponse {
        messages: vec![message],
    }))
}

/// Returns the image that the running version came from, and the floor.
fn release(machine: &Machine) -> wire::ReleaseInfo {
    let floor = machine.upgrades.floor();
    let floor = floor.map_or_else(String::new, |floor| floor.version.to_string());
    let origin = machine.store.get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
    match origin {
        Some(origin) => wire::ReleaseInfo {
            image: origin.image,
            digest: origin.digest.to_string(),
            created: origin.created.unwrap_or_default(),
            floor,
        },
        None => wire::ReleaseInfo {
            floor,
            ..Default::default()
        },
    }
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
