//! The client's side of the API, for every program that talks to Instar nodes: `instarctl`, the dashboard, the operator for
//! Kubernetes, the machine's own checks, and the tests.
//!
//! ```text
//! Target ──nodes()──► Node ──machine(), channel()──► calls ──explain()──► Failure { kind, message, advice, cause }
//!   │                  │
//!   │ configuration    └─ follow(): events ─► Tracker ─► Verdict; a broken link, a reboot, a rollback on the way
//!   ├ Endpoint ─ TLS ─ one connection for all nodes behind the endpoint
//!   └ a unix socket ─ the one node that made it
//! ```
//!
//! - [`Target`]: the nodes to ask and the client's identity, from a client configuration and overrides.
//! - [`Endpoint`], [`Trust`], [`connect`]: one authenticated connection. It reconnects by itself.
//! - [`Node`]: addresses calls to one node and explains its refusals.
//! - [`follow()`] and [`Tracker`]: follow a reboot, an upgrade or a shutdown to its end.
//! - [`upgrade()`] and [`roll_back()`]: a change of versions, from the request to a version that has proved itself. Every program upgrades
//!   by this function.
//! - [`Standing`]: the version that a node runs, whether it is ready, and how its upgrades ended.
//! - [`resources()`], [`resources_in()`]: the resources of one type, decoded.
//! - [`read_config()`], [`is_on_trial()`]: a node's machine config, as it was written, and whether it is to stay.
//! - [`event_history()`], [`newest_event()`]: the events that a node remembers, all of them or the place where they end.
//! - [`ask_again()`]: continues a stream whose node changed to another version without a reboot, or whose connection broke.
//! - [`Failure`]: the error and advice. Programs decide by its [`FailureKind`].
//!
//! # The key decision: calls are not wrapped
//!
//! [`Node`] hands out the clients that are generated from the `.proto` files. It adds what every call needs, the node's name
//! ([`Node::request`]) and the meaning of an error ([`Node::explain`]), and nothing else. The other choice, a method of this crate for each
//! of the API's hundred methods, would give shorter calls. It lost because each of those methods is a second place that has to know the
//! message's fields: new fields of the API could not be sent before they are added here too. Only the requests of every program have a
//! method: the version, the boot id, a file, an upgrade.
//!
//! The crate prints nothing and reads nothing but the client configuration. Progress goes to a [`Progress`] of the program.

#![forbid(unsafe_code)]

mod ask_again;
mod config_file;
mod connection;
mod endpoint;
mod event_history;
mod failure;
mod follow;
mod lines;
mod machine_config;
mod node;
mod socket;
mod standing;
mod target;
mod tracker;
mod upgrade;

pub use ask_again::{BACK_WITHIN, Interruption, ask_again};
pub use connection::{ConnectError, Trust, connect};
pub use endpoint::{BadEndpoint, Endpoint};
pub use event_history::{event_history, newest_event};
pub use failure::{Failure, FailureKind};
pub use follow::{Done, Progress, follow, remembered_failure};
pub use lines::Lines;
pub use machine_config::{CONFIG_IN_FORCE, CONFIG_KEPT, config_failure, is_on_trial, read_config};
pub use node::Node;
pub use standing::{Standing, resources, resources_in};
pub use target::Target;
pub use tracker::{Goal, Tracker, Update, Verdict, service_state};
pub use upgrade::{
    Upgraded, ask_for_replacement, ask_for_rollback, ask_for_upgrade, is_busy, replace, roll_back,
    upgrade, version_in_tag,
};
