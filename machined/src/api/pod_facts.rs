//! Facts about the containers of pods, and their words for clients: `Containers` and `Stats` for the driver CRI.

use instar_api::machine::ContainerInfo;

use super::container_facts::{cpu_time, first_process, read_number};
use super::containers::{POD_NAMESPACE, Shown};
use crate::config::Kubernetes;
use crate::containers::Runtime;
use crate::kubernetes::{PodContainer, pod_containers};
use crate::services::Cgroup;

/// The facts about one container of a pod, or about the pod's sandbox.
pub(super) struct PodFacts {
    container: PodContainer,
    /// PID of its first process, while it runs.
    pid: Option<u32>,
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
        PodFacts {
            pid: first_process(&own),
            memory_bytes: read_number(&own.join("memory.current")),
            cpu_nanoseconds: cpu_time(&own),
            container,
        }
    };
    Ok(containers.map(with_facts).collect())
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
                ..ContainerInfo::default()
            },
            memory_bytes: facts.memory_bytes,
            cpu_nanoseconds: facts.cpu_nanoseconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            memory_bytes: 0,
            cpu_nanoseconds: 0,
        };
        let sandbox = Shown::from(facts(None, Some(7))).info;
        assert_eq!(
            (sandbox.id.as_str(), sandbox.status.as_str()),
            ("default/web-1", "SANDBOX_READY")
        );
        let web = Shown::from(facts(Some("web"), None)).info;
        assert_eq!(web.id, "default/web-1:web:0123456789ab");
        assert_eq!(
            (web.pod_id.as_str(), web.status.as_str()),
            ("default/web-1", "CONTAINER_EXITED")
        );
    }
}
