//! The client's side of the API, for every program that talks to Instar nodes: `instarctl`, the dashboard, the tests, and what will
//! keep a fleet up to date.
//!
//! ```text
//! Target ──nodes()──► Node ──machine(), channel()──► calls ──explain()──► Failure { kind, message, advice, cause }
//!   │                  │
//!   │ configuration    └─ follow(): events ─► Tracker ─► Verdict; a broken link, a reboot, a rollback on the way
//!   └ Endpoint ─ TLS ─ one connection for all nodes behind the endpoint
//! ```
//!
//! - [`Target`]: whom to ask and as whom, from a client configuration and what overrides it.
//! - [`Endpoint`], [`Trust`], [`connect`]: one authenticated connection. It dials again by itself.
//! - [`Node`]: addresses calls to one node and explains its refusals.
//! - [`follow()`] and [`Tracker`]: see a reboot, an upgrade or a shutdown through to its end.
//! - [`event_history()`]: the events that a node remembers, all of them.
//! - [`ask_again()`]: goes on with a stream whose node changed to another version without a reboot.
//! - [`Failure`]: what went wrong and what to do next. Its [`FailureKind`] is what programs decide by.
//!
//! # The key decision: calls are not wrapped
//!
//! [`Node`] hands out the clients that are generated from the `.proto` files. It adds what every call needs, the node's name
//! ([`Node::request`]) and the meaning of an error ([`Node::explain`]), and nothing else. The other choice, a method of this crate for each
//! of the API's hundred methods, would give shorter calls. It lost because each of those methods is a second place that has to know the
//! message's fields: whatever a newer API adds could not be sent until somebody has written it here too. Only what every
//! program asks for has a method: the version, the boot id, a file.
//!
//! The crate prints nothing and reads nothing but the client configuration. What happens meanwhile goes to a [`Progress`], which is the
//! program's.

#![forbid(unsafe_code)]

mod ask_again;
mod config_file;
mod connection;
mod endpoint;
mod event_history;
mod failure;
mod follow;
mod lines;
mod node;
mod target;
mod tracker;

pub use ask_again::ask_again;
pub use connection::{ConnectError, Trust, connect};
pub use endpoint::{BadEndpoint, Endpoint};
pub use event_history::event_history;
pub use failure::{Failure, FailureKind};
pub use follow::{Done, Progress, follow, remembered_failure};
pub use lines::Lines;
pub use node::Node;
pub use target::Target;
pub use tracker::{Goal, Tracker, Update, Verdict, service_state};
