//! The operator: rolls versions and configs out over the nodes of a Kubernetes cluster.
//!
//! ```text
//!  people ── Pool ─► watches ─► pool::Keeper, one for each pool ─► instar-rollout-driver ─► instar-rollout
//!                      ▲              │ record saved in Pool.status, lease looked at      (rules)
//!  kubelet ── Node ────┘              ▼
//!                          upgrade: cordon, plan, drain, upgrade ─► the node's API, as os:upgrader
//!                          configure: cordon, drain, try, keep   ─► the same, as os:admin, if the administrator allows it; so for a replacement
//! ```
//!
//! The floor plan, imports run down this list:
//! - `run`: the watches, the lease, a keeper for each pool
//! - `page`: the pools in a browser, with the rights of each visitor
//! - `channels`: reads the lists of channels, and shows the newest release of each
//! - `pool`: one pool: commands of people, rounds of the driver, what is shown
//! - `named`: what a pool names: a version, by an image or a channel, and patches of configs
//! - `ahead`: what nodes say of it before a rollout begins
//! - `machines`: the nodes of one rollout as the driver sees and asks them
//! - `questions`: the questions to them that are under way
//! - `upgrade`, `configure`: one node's upgrade or change of config, by the calls of its API
//! - `making_way`: what comes before either: cordon, drain, and whether it is still wanted
//! - `hindrances`: why orders to nodes could not be carried out
//! - `config_secrets`: the previous configs, for the way back
//! - `node_lease`: when the cluster has heard from a node
//! - `drain`: the pods of one node leave, within the time of the policy
//! - `cluster`: the cluster as all of them see it: the client, the stores of watched objects
//! - `record_store`: the records of rollouts in the status of their pool
//! - `events`: what `kubectl describe` tells of nodes and pools
//! - `lease`: who drives
//! - `way`: the ways to clusters
//! - `cluster_api`: another program of this package, which makes pools for Cluster API
//! - pure parts: `turns` (whether a rollout begins, of a version or of configs), `rollouts` (how), `step` (which release of a channel comes next),
//!   `left_behind` (which nodes failed at one, and are not waited for), `removed_patches` (which stay in force on nodes), `shown` (record → status,
//!   conditions, NodeUpgrades), `policy` (Pool → the engine's policy), `node` (Node → what a rollout needs of it), `replacement` (which nodes may be replaced), `eviction` (which pods have to go)
//! - `manifest`: definitions, rights and the deployment as YAML
//! - `api`: the custom resources
//!
//! # The key decision: the record is in the status of the pool
//!
//! A rollout is one value, and a driver that takes over needs all of it at once: who has begun, who has failed, who was approved. So it is one
//! field of one object, which the API server replaces whole or not at all, and only over the version that was read. NodeUpgrades are made from it
//! for people. The other choice was the state of each node in an object of its own: more natural to read, and no moment at which all of it is
//! consistent. It costs room: an object may have 1.5 MB, which is some 5,000 nodes for one pool.

#![forbid(unsafe_code)]

mod ahead;
pub mod api;
mod channels;
mod cluster;
pub mod cluster_api;
mod config_secrets;
mod configure;
mod drain;
mod events;
mod eviction;
mod failure;
mod hindrances;
mod lease;
mod left_behind;
mod machines;
mod making_way;
pub mod manifest;
mod named;
mod node;
mod node_lease;
mod page;
mod policy;
mod pool;
mod questions;
mod record_store;
mod removed_patches;
mod replacement;
mod rollouts;
mod run;
mod serve;
mod shown;
mod step;
mod turns;
mod upgrade;
mod way;

pub use failure::Error;
pub use run::{Options, run};
