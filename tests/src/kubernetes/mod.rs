//! A real Kubernetes around nodes under test: a control plane on this host, extensions as they are published, images of pods.
//!
//! ```text
//! build/kubernetes-peers      target/kubernetes/bin          etcd, kube-apiserver, …, kubelet, containerd, CNI plugins
//! build/kubernetes-extensions target/kubernetes/extensions   the trees `containerd` and `kubernetes`, and their .raw files
//! ControlPlane::start         etcd ◄─ kube-apiserver ◄─ kube-controller-manager, kube-scheduler, and the node at 10.0.2.2
//! Registry                    ◄─ push_extension, push_base, push_pause, push_greeter
//! ```
//!
//! The decision: the programs are those that clusters run, built from their published modules, as processes of this host. A fake API server was
//! the other choice: quicker, and a node that satisfies it may still not join a cluster. kind and k3d were a third: they need Docker and images
//! from the internet.

mod airlock;
mod api_proxy;
mod audit;
mod authority;
mod cluster_api;
mod control_plane;
mod etcd;
mod extensions;
mod fleet_operator;
mod helm;
mod images;
mod job_kubelets;
mod kubectl;
mod object_server;
mod own_cluster;
mod peers;
mod process_memory;
mod programs;
mod row_writer;
mod upgrade_controller;
mod upgrade_cost;
mod worker_config;

pub use airlock::Airlock;
pub use api_proxy::{ApiProxy, PlainApi};
pub use audit::AuditedRequest;
pub use cluster_api::{CapiExtension, ClusterApi};
pub use control_plane::ControlPlane;
pub use extensions::{extension_file, push_extension, push_extension_with};
pub use fleet_operator::{FleetOperator, install_fleet_operator};
pub use helm::Helm;
pub use images::{
    KUBERNETES_BASE, PAUSE, push_base, push_operator_image, push_pause, push_postgresql,
    push_upgrade_image,
};
pub use job_kubelets::JobKubelets;
pub use kubectl::Kubectl;
pub use object_server::{ObjectServer, TokenRights};
pub use own_cluster::{cluster_section, kubernetes_version, push_control_plane, push_core_dns};
pub use peers::{push_kubectl, push_kured, push_system_upgrade_controller};
pub use process_memory::ProcessMemory;
pub use row_writer::{Committed, Database, RowWriter};
pub use upgrade_controller::UpgradeController;
pub use upgrade_cost::{UpgradeCost, UpgradeMeter, cost_table};
pub use worker_config::{ExtensionSource, gives_up_soon, worker_config};
