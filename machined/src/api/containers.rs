//! `Containers` and `Stats`: the containers of the machine config. Each is a service, alone in its pod.

use instar_api::common::ContainerDriver;
use instar_api::machine::{ContainerInfo, Stat};

use super::container_facts::ContainerFacts;

/// The namespace by which clients ask for the machine's own containers.
const NAMESPACE: &str = "system";
/// The namespace by which clients ask for the containers of pods.
pub(super) const POD_NAMESPACE: &str = "k8s.io";

/// The containers that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meant {
    /// The containers of the machine config.
    Own,
    /// The containers of pods.
    OfPods,
    /// There are no others.
    None,
}

/// Returns the containers that a request asks for.
pub(super) fn meant(namespace: &str, driver: ContainerDriver) -> Meant {
    match (driver, namespace) {
        (ContainerDriver::Containerd, "" | NAMESPACE) => Meant::Own,
        (ContainerDriver::Cri, "" | POD_NAMESPACE) => Meant::OfPods,
        _ => Meant::None,
    }
}

/// A container as clients see it: in `Containers`, and in `Stats`.
pub(super) struct Shown {
    pub(super) info: ContainerInfo,
    pub(super) memory_bytes: u64,
    pub(super) cpu_nanoseconds: u64,
}

impl Shown {
    /// Converts it for `Stats`.
    pub(super) fn into_stat(self) -> Stat {
        Stat {
            namespace: self.info.namespace,
            id: self.info.id,
            memory_usage: self.memory_bytes,
            cpu_usage: self.cpu_nanoseconds,
            pod_id: self.info.pod_id,
            name: self.info.name,
        }
    }
}

impl From<ContainerFacts> for Shown {
    fn from(container: ContainerFacts) -> Self {
        Self {
            info: ContainerInfo {
                namespace: NAMESPACE.to_owned(),
                id: container.name.clone(),
                image: container.image,
                pid: container.pid.unwrap_or(0),
                status: container.phase.name().to_uppercase(),
                pod_id: container.name.clone(),
                name: container.name,
                ..ContainerInfo::default()
            },
            memory_bytes: container.memory_bytes,
            cpu_nanoseconds: container.cpu_nanoseconds,
        }
    }
}
