//! Facts about the containers of pods, and their words for clients: `Containers` and `Stats` for the driver CRI.

use instar_api::machine::ContainerInfo;

use std::fs;
use std::path::Path;

use super::container_facts::{cpu_time, read_number};
use super::containers::{POD_NAMESPACE, Shown};
use crate::config::Kubernetes;
use crate::containers::Runtime;
use crate::kubernetes::{PodContainer, pod_containers};
use crate::services::Cgroup;
use crate::statistics::network_namespace;

/// The facts about one container of a pod, or about the pod's sandbox.
pub(super) struct PodFacts {
    container: PodContainer,
    /// PID of its first process, while it runs.
    pid: Option<u32>,
    /// The name of its network namespace, by which its sockets are asked for; empty if it is the machine's own.
    network_namespace: String,
    memory_bytes: u64,
    cpu_nanoseconds: u64,
}

/// Lists the containers of pods; none on a machine without Kubernetes. Blocks.
pub(super) fn of_pods() -> anyhow::Result<Vec<PodFacts>> {
    let name = Kubernetes::CONTAINER.parse()?;
    let running = Cgroup::where_it_runs(Kubernetes::CONTAINER)?;
    let Some((first, cgroup)) = Runtime::default().noted_pid(&name).zip(running) else {
        return Ok(Vec::new());
    };
    let containers = pod_containers(first, &cgroup)?.into_iter();
    let with_facts = |container: PodContainer| {
        let own = cgroup.directory().join(&container.cgroup);
        let pid = first_process(&own);
        PodFacts {
            pid,
            network_namespace: pid.map(network_namespace).unwrap_or_default(),
            memory_bytes: read_number(&own.join("memory.current")),
            cpu_nanoseconds: cpu_time(&own),
            container,
        }
    };
    Ok(containers.map(with_facts).collect())
}

/// A container's first process: the lowest PID, unless PIDs have wrapped around.
fn first_process(cgroup: &Path) -> Option<u32> {
    let processes = fs::read_to_string(cgroup.join("cgroup.procs")).ok()?;
    processes.lines().filter_map(|pid| pid.parse().ok()).min()
}

impl PodFacts {
    /// As talosctl shows it: the pod, or pod, container and the begin of its id.
    fn id(&self) -> String {
        let PodContainer { id, pod, name, .. } = &self.container;
        match name {
            Some(name) => format!("{pod}:{name}:{id:.12}"),
            None => pod.clone(),
        }
    }

    /// In the words of CRI.
    fn status(&self) -> &'static str {
        match (&self.container.name, self.pid) {
            (Some(_), Some(_)) => "CONTAINER_RUNNING",
            (Some(_), None) => "CONTAINER_EXITED",
            (None, Some(_)) => "SANDBOX_READY",
            (None, None) => "SANDBOX_NOTREADY",
        }
    }
}

impl From<PodFacts> for Shown {
    fn from(facts: PodFacts) -> Self {
        let (id, status) = (facts.id(), facts.status().to_owned());
        let container = facts.container;
        Self {
            info: ContainerInfo {
                namespace: POD_NAMESPACE.to_owned(),
                id,
                image: container.image,
                pid: facts.pid.unwrap_or(0),
                status,
                name: container.name.unwrap_or_else(|| container.pod.clone()),
                pod_id: container.pod,
                internal_id: container.id,
                uid: container.pod_uid,
                network_namespace: facts.network_namespace,
            },
            memory_bytes: facts.memory_bytes,
            cpu_nanoseconds: facts.cpu_nanoseconds,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_first_process_has_the_lowest_number() {
        let cgroup = tempfile::tempdir().unwrap();
        fs::write(cgroup.path().join("cgroup.procs"), "212\n198\n").unwrap();
        assert_eq!(first_process(cgroup.path()), Some(198));
        assert_eq!(first_process(Path::new("/nonexistent")), None);
    }

    #[test]
    fn clients_find_a_container_below_its_pod() {
        let facts = |name: Option<&str>, pid| PodFacts {
            container: PodContainer {
                id: "0123456789abcdef".to_owned(),
                pod: "default/web-1".to_owned(),
                pod_uid: "u".to_owned(),
                name: name.map(str::to_owned),
                image: String::new(),
                cgroup: "kubepods".into(),
            },
            pid,
            network_namespace: "4026532177".to_owned(),
            memory_bytes: 0,
            cpu_nanoseconds: 0,
        };
        let sandbox = Shown::from(facts(None, Some(7))).info;
        assert_eq!(
            (sandbox.id.as_str(), sandbox.status.as_str()),
            ("default/web-1", "SANDBOX_READY")
        );
        // Clients ask for the sockets of a pod by this name.
        assert_eq!(sandbox.network_namespace, "4026532177");
        let web = Shown::from(facts(Some("web"), None)).info;
        assert_eq!(web.id, "default/web-1:web:0123456789ab");
        assert_eq!(
            (web.pod_id.as_str(), web.status.as_str()),
            ("default/web-1", "CONTAINER_EXITED")
        );
    }
}
