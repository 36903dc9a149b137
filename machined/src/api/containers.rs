//! `Containers` and `Stats`: the containers of the machine config. Each is a service, alone in its pod.

use instar_api::common::ContainerDriver;
use instar_api::machine::{ContainerInfo, Stat};

use super::container_facts::ContainerFacts;
use super::pod_facts;

/// The namespace by which clients ask for the machine's own containers.
const NAMESPACE: &str = "system";

/// The containers that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meant {
    /// Those of the machine config.
    Own,
    /// Those of pods.
    OfPods,
    /// There are no others.
    None,
}

/// Returns the containers that a request asks for.
pub(super) fn meant(namespace: &str, driver: ContainerDriver) -> Meant {
    match (driver, namespace) {
        (ContainerDriver::Containerd, "" | NAMESPACE) => Meant::Own,
        (ContainerDriver::Cri, "" | pod_facts::NAMESPACE) => Meant::OfPods,
        _ => Meant::None,
    }
}

/// Converts a container for `Containers`.
pub(super) fn info(container: &ContainerFacts) -> ContainerInfo {
    ContainerInfo {
        namespace: NAMESPACE.to_owned(),
        id: container.name.clone(),
        image: container.image.clone(),
        pid: container.pid.unwrap_or(0),
        status: container.phase.name().to_uppercase(),
        pod_id: container.name.clone(),
        name: container.name.clone(),
        ..ContainerInfo::default()
    }
}

/// Converts a container for `Stats`.
pub(super) fn stat(container: &ContainerFacts) -> Stat {
    Stat {
        namespace: NAMESPACE.to_owned(),
        id: container.name.clone(),
        memory_usage: container.memory_bytes,
        cpu_usage: container.cpu_nanoseconds,
        pod_id: container.name.clone(),
        name: container.name.clone(),
    }
}
