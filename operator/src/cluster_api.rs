//! The extension server of Cluster API: machines get another OS image, another version of Kubernetes and patches of their config in place, instead
//! of being replaced.
//!
//! ```text
//!  Cluster API's managers ── TLS: CanUpdateMachineSet, CanUpdateMachine ─► difference: a patch, or no
//!                         ── TLS: UpdateMachine, again and again ────────► driver ─► Machine: not to be remediated meanwhile
//!                                                                            │
//!                                              CLUSTER-kubeconfig ─► Pool of one node in the machine's cluster ─► instar-operator there
//! ```
//!
//! The floor plan, imports run down this list:
//! - `server`: TLS, limits, a request in and an answer out
//! - `hooks`: which hook a path means, and the answer of each
//! - `driver`: one call of UpdateMachine: looks, decides, carries out
//! - `workload`: the cluster of the machine: its node, and its pool
//! - `machine`: the Machine and its objects in the management cluster
//! - `registration`: whether settings are an administrator's
//! - pure parts: `update` (what to do next), `difference` (what can change in place), `wanted` (what a machine is to become), `settings`,
//!   `kubernetes` (versions, and the patch with one), `config_patches`, `wire` (requests and answers), `field_path`, `address` (which texts may
//!   be parts of an object's address), `trouble` (why a step was not taken)
//! - `manifest`: rights, the deployment and the registration as YAML
//!
//! # The key decision: an update is a Pool of one node
//!
//! The operator in the machine's cluster has all that an update takes: the record, the lease, cordon and drain, the proof, the way on after it was
//! killed. So an update in place is a Pool that selects this one node, named after the Machine's uid, and every call of UpdateMachine only looks
//! at it. This server keeps nothing: it may be killed at any moment, and several may run. To drive the node from here was the other choice: a
//! second state machine, with its own record and its own lease, and two of them could drive the same node. Now a node that belongs to another pool
//! too is a conflict that both pools tell.

mod address;
mod config_patches;
mod difference;
mod driver;
mod field_path;
mod hooks;
mod kubernetes;
mod machine;
pub mod manifest;
mod registration;
mod server;
mod settings;
mod trouble;
mod update;
mod wanted;
mod wire;
mod workload;

pub use server::{Options, serve};
