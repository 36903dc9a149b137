//! `Containers` and `Stats`: the containers of the machine config. Each is a service, alone in its pod.

use instar_api::common::ContainerDriver;
use instar_api::machine::{ContainerInfo, Stat};

use super::container_facts::ContainerFacts;

/// The namespace that clients ask for when they mean the machine's own containers.
const NAMESPACE: &str = "system";

/// Whether a request is about the machine's own containers; there are no others, as there is no Kubernetes.
pub(super) fn are_meant(namespace: &str, driver: ContainerDriver) -> bool {
    driver == ContainerDriver::Containerd && matches!(namespace, "" | NAMESPACE)
}

/// A container as `Containers` shows it.
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

/// A container as `Stats` shows it.
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
