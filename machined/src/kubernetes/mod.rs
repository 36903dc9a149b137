//! Kubernetes on this machine: the files that its container gets, and the resources that show how it goes.
//!
//! ```text
//! the config ──► kubelet       kubelet's configuration and options
//!                bootstrap     the cluster's address, authority and token, as a kubeconfig
//!                containerd    containerd's configuration; the machine's registries, as hosts.toml
//!                files         all of them with their places; what has changed is written
//!                extensions    each unpacked extension is checked as kubernetes-init will check it ──► the plan
//! ```
//!
//! What is done with them, and when, is a sequence (`sequences/kubernetes.rs`). The container itself is an ordinary one
//! ([`Kubernetes::container`](crate::config::Kubernetes::container)): whatever of the files changes, it runs on, with all pods.

mod bootstrap;
mod containerd;
mod extensions;
mod files;
mod kubelet;

pub use extensions::{ExtensionFact, ExtensionState, UnpackedExtension, checked};
pub use files::{Changed, Environment, NodeFile, files, remove_membership, write};

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::config::Kubernetes;
use crate::store::Resource;

/// The directory that the container has as /var.
fn var() -> PathBuf {
    Path::new(Kubernetes::HOME).join("var")
}

/// The directory that the container has as /etc/kubernetes.
fn etc() -> PathBuf {
    Path::new(Kubernetes::HOME).join("etc")
}

/// The directory by which machined and kubernetes-init exchange files.
pub fn control() -> PathBuf {
    Path::new(Kubernetes::HOME).join("control")
}

/// Makes the directories that the container mounts.
///
/// # Errors
/// One cannot be made.
pub fn make_directories() -> std::io::Result<()> {
    for directory in [
        var(),
        etc(),
        control(),
        Path::new(Kubernetes::IMAGES).to_owned(),
    ] {
        std::fs::create_dir_all(directory)?;
    }
    Ok(())
}

/// The machine as a node, as `get kubernetes` shows it. Its id is the node's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KubernetesFact {
    /// Why Kubernetes, or a part of it, does not run; empty if all of it does.
    pub problems: Vec<String>,
    /// Its services: name, state and restarts.
    pub services: Vec<NodeService>,
}

/// A service of an extension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeService {
    /// Its name.
    pub name: String,
    /// The extension that it is of.
    pub extension: String,
    /// Its state.
    pub state: String,
    /// The number of starts after the first one.
    pub restarts: u64,
    /// Why it does not run, or how it ended the last time.
    pub last: Option<String>,
}

impl Resource for KubernetesFact {
    const NAMESPACE: &'static str = "k8s";
    const TYPE: &'static str = "KubernetesNodes.instar.dev";
}
