//! `Containers` and `Stats`: the containers of the machine config. Each is a service, alone in its pod.

use instar_api::common::ContainerDriver;
use instar_api::machine::{ContainerInfo, Stat};

use super::container_facts::ContainerFacts;

/// The namespace by which clients ask for the machine's own containers.
const NAMESPACE: &str = "system";

/// Returns whether a request asks for the machine's own containers. There are no others, as there is no Kubernetes.
pub(super) fn are_meant(namespace: &str, driver: ContainerDriver) -> bool {
    driver == ContainerDriver::Containerd && matches!(namespace, "" | NAMESPACE)
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
