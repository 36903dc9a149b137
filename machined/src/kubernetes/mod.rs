//! Kubernetes on this machine: the files that its container gets, and the resources that show how it goes.
//!
//! ```text
//! the config ──► kubelet       kubelet's configuration and options
//!                bootstrap     the cluster's address, authority and token, as a kubeconfig
//!                containerd    containerd's configuration; the machine's registries, as hosts.toml
//!                authorities   whom both believe, the machine's and the config's
//!                variables     the machine's variables, below those of each service
//!                files         all of them with their places; what has changed is written
//!                control_plane the static pods of a machine that has the cluster itself
//!                extensions    each unpacked extension is checked as kubernetes-init will check it ──► the plan
//! ```
//!
//! The work with them, and its order, is a sequence (`sequences/kubernetes.rs`). The container itself is an ordinary one
//! ([`Kubernetes::container`](crate::config::Kubernetes::container)): whatever of the files changes, it runs on, with all pods.

#[cfg(test)]
mod a_node;
mod api_server;
mod authorities;
mod bootstrap;
mod cluster_nodes;
mod container_root;
mod containerd;
pub mod control_plane;
mod daemon_sets;
mod emptied;
mod extensions;
mod files;
mod followed;
mod known_nodes;
mod kubelet;
mod kubelet_certificate;
mod kubelet_health;
mod kubelet_run;
mod kubelet_spec;
mod logs;
pub mod node_addresses;
mod node_metadata;
mod node_object;
mod node_status;
mod plan_file;
mod pod_containers;
mod pod_logs;
mod pods_socket;
mod readiness;
mod record;
mod static_pods;
mod status_file;
pub mod trial;
mod variables;
pub mod version_file;
pub mod waits_for_room;

pub use authorities::authorities;
pub use cluster_nodes::{ClusterNode, cluster_nodes};
pub use containerd::PODS_REGISTRY;
pub use daemon_sets::changed_images;
pub use extensions::checked;
pub use followed::{Followed, Offer};
pub use known_nodes::KnownNodes;
pub use kubelet_health::{KUBELET_UP, kubelet_health};
pub use kubelet_run::{KubeletRun, kubelet_age, kubelet_run};
pub use kubelet_spec::{KubeletSpec, kubelet_spec};
pub use logs::NodeLogs;
pub use node_metadata::{Mode, NodeMetadata};
pub use node_object::{NodeObject, Refusal};
pub use node_status::NodeStatus;
pub use plan_file::PlanFile;
pub use pod_containers::{PodContainer, pod_containers};
pub use pod_logs::{NotAName, PodContainerName, PodLog, names as pod_log_names};
pub use pods_socket::{FoundSocket, PodsSocket};
pub use readiness::readiness;
pub use record::NodeRecord;
pub use static_pods::{StaticPod, StaticPodStatus, static_pod_statuses, static_pods};
pub use status_file::read_status;

pub use files::{Environment, NodeFile, OfMachine, files, member_name, remove_membership, write};

use std::path::{Path, PathBuf};
use std::{fs, io};

pub use instar_kubernetes_plan::State as ServiceState;
use instar_kubernetes_plan::{MACHINE_ID, OS_RELEASE, STATUS};
use serde::Serialize;

use crate::base::{removal, whole_file};
use crate::config::Kubernetes;
use crate::store::Resource;
use crate::values::VolumeName;

/// The directory of all that Kubernetes has on the machine.
fn home() -> PathBuf {
    Path::new(Kubernetes::HOME).to_owned()
}

/// The directory that the container has as /var.
fn var() -> PathBuf {
    home().join("var")
}

/// The directory that the container has as /etc/kubernetes.
fn etc() -> PathBuf {
    home().join("etc")
}

/// The directory by which machined and kubernetes-init exchange files.
pub fn control() -> PathBuf {
    home().join("control")
}

/// The directory in which kubernetes-init keeps the logs of services.
pub fn logs() -> PathBuf {
    control().join(instar_kubernetes_plan::LOGS)
}

/// Makes what the container needs before it starts: the directories that it mounts, and this version's os-release. The status of a container
/// that does not run is removed, as its plan is ([`PlanFile::forget`]), and so are files that a power cut has left empty.
///
/// # Errors
/// A directory cannot be made, or a file cannot be written.
pub fn prepare(is_running: bool) -> io::Result<()> {
    let images = Path::new(Kubernetes::IMAGES).to_owned();
    // kubelet looks for manifests each second, and logs that their directory is missing.
    let manifests = etc().join("manifests");
    // User volumes may come later.
    let volumes = Path::new(VolumeName::DIRECTORY).to_owned();
    for directory in [var(), manifests, control(), images, volumes] {
        fs::create_dir_all(directory)?;
    }
    if !is_running {
        removal::file(&control().join(STATUS))?;
        emptied::remove(&var())?;
    }
    // Pods see /run of the container by this path.
    match std::os::unix::fs::symlink("/run", var().join("run")) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => result?,
    }
    let machine_id = control().join(MACHINE_ID);
    if !machine_id.exists() {
        whole_file::replace(&machine_id, 0o644, new_machine_id()?.as_bytes())?;
    }
    let release = fs::read_to_string("/etc/os-release")?;
    write_in_place(&control().join(OS_RELEASE), &release)
}

/// Makes the identity of a node, which lasts for as long as its data: 32 hexadecimal digits (machine-id(5)).
fn new_machine_id() -> io::Result<String> {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(random.replace('-', ""))
}

/// Returns a short digest of texts.
fn digest(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&part.len().to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Writes a file in place: the container has it bound over another file, and would see a replaced one no more.
fn write_in_place(file: &Path, content: &str) -> io::Result<()> {
    match fs::read_to_string(file) {
        Ok(before) if before == content => Ok(()),
        _ => fs::write(file, content),
    }
}

/// The machine as a node, as `get kubernetes` shows it. Its id is the node's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KubernetesFact {
    /// Why Kubernetes, or a part of it, does not run; empty if all of it does.
    pub problems: Vec<String>,
    /// Its services.
    pub services: Vec<NodeService>,
    /// Whether the cluster takes it for ready.
    pub readiness: trial::Readiness,
    /// Whether there is a cluster: the machine's own one waits for `bootstrap`.
    pub has_begun: bool,
}

/// A service of an extension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeService {
    /// Its name.
    pub name: String,
    /// The extension that it is of.
    pub extension: String,
    /// Its state.
    pub state: ServiceState,
    /// When that changed the last time, in seconds since 1970.
    pub since: u64,
    /// The number of starts after the first one.
    pub restarts: u64,
    /// Why it does not run, or how it ended the last time.
    pub last: Option<String>,
    /// Whether it has done its work: it ended with success, and is not to start again.
    pub has_finished: bool,
}

impl NodeService {
    /// Whether it is as it is to be.
    pub fn is_well(&self) -> bool {
        self.state == ServiceState::Running || self.has_finished
    }
}

impl Resource for KubernetesFact {
    const NAMESPACE: &'static str = "k8s";
    const TYPE: &'static str = "KubernetesNodes.instar.dev";
}
