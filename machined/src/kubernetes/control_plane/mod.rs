//! The control plane of a cluster on this machine: etcd, API server, controller manager and scheduler as static pods of kubelet.
//!
//! ```text
//! the config's keys ──► certificates   those of each program, issued again in time    /etc/kubernetes/pki
//!                       kubeconfigs    of the programs and of the administrator       /etc/kubernetes/*.conf
//! version, settings ──► manifests      the static pods                                /etc/kubernetes/manifests
//!                       write          all of them with their places; what has changed is written
//! a running API     ──► objects        those that let nodes join, those of the config's manifests, and the node's role
//!                       dns            those of CoreDNS
//!                       proxy          those of kube-proxy on other nodes
//!                       discovery      the paths of the manifests' objects, by the API server's own list of kinds
//!                       own_api        its calls, as an administrator
//! a running etcd    ──► etcd           members, snapshots, by its API
//!                       maintenance    its status, alarms, unused room
//!                       backup         snapshots before another version
//! a call            ──► beginning      whether the cluster may begin, and how
//!                       snapshot_file  whether a file is a whole snapshot of etcd
//!                       recovery       the way of a snapshot to etcd's data
//! ```
//!
//! The decision: machined computes every file from the config and the version of the extension, as the files of a node. kubeadm, which the
//! extension brings as well, was the other choice: its phases leave files that only a next phase changes, so that each power cut between two
//! of them, each other config and each way back would be a case of its own. Here another config or version is another set of files.
//!
//! The version is that of the extension `kubernetes`, whatever tags the config names: kubelet and control plane change, and go back, together.
//! All programs reach each other by the loopback, which no lease and no link takes away.

pub mod backup;
pub mod beginning;
mod certificates;
mod discovery;
mod dns;
pub mod etcd;
#[cfg(test)]
mod folder_for_tests;
mod kubeconfigs;
pub mod maintenance;
mod manifests;
mod object;
mod objects;
mod own_api;
mod place;
mod proxy;
pub mod recovery;
pub mod snapshot_file;
mod write;

pub use kubeconfigs::administrator;
pub use manifests::etcd_image;
pub use objects::{Applied, apply};
pub(super) use own_api::own_identity;
pub use place::Place;
pub use write::{begin, data_directory, has_begun, version_of, write, written_etcd_image};
