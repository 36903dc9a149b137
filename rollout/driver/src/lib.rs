//! Drives a rollout: the loop around the engine `instar-rollout`, which does no I/O.
//!
//! ```text
//!              ┌────────────────────── Driver::round ──────────────────────┐
//!  Machines ── look ─► observe ─► decide ─► intend ─► Store: save ─► may it act? ─► Machines: ask
//!     ▲                                                                              │
//!     └────────────────────────── Driver::note: report, saved ◄───────────────────┘
//! ```
//!
//! - [`Driver`]: the loop, the same for every program that rolls a version out.
//! - [`Store`]: where the record is: a file with a lock (`instarctl fleet`), an object of a cluster with a lease (the operator).
//! - [`Machines`]: how machines are looked at and asked.
//! - [`TraceFile`]: the rounds of a run as lines of JSON, for `instar_rollout::replay`.
//! - [`fact()`], [`plan()`], [`target()`], [`pinned()`], [`report()`], [`time_left()`]: what both programs make of the answers of an Instar node.
//! - [`ConfigChange`], [`ConfigOrder`], [`config_fact()`]: a change of machine configs, how one node takes it and goes back, and how it is seen that
//!   a node has it. [`NodeConfigStore`] is where a program keeps the previous configs, [`ConfigSite`] what it does around the change.
//!
//! # The key decision: a driver is a loop over two traits
//!
//! The order of the steps is what the model checks (`rollout/tests/model`): nothing is asked before it is saved, and a driver with a lease
//! looks at the lease between the two. So that order is written once. What differs between the programs is where the record is and how a
//! machine is reached, and that is all that the traits have. A loop in each program was the other choice: each would have to be held against the
//! model by itself.

#![forbid(unsafe_code)]

mod answers;
mod config_change;
mod config_fact;
mod config_order;
mod driver;
mod pauses;
mod time_left;
mod trace_file;

pub use answers::{busy, fact, pinned, plan, report, target};
pub use config_change::{ConfigChange, NodeConfigStore, NodeConfigs, release_of, says_the_same};
pub use config_fact::config_fact;
pub use config_order::{ConfigOrder, ConfigSite, Trial, asked};
pub use driver::{Driver, Ended, Machines, Round, Store, Task, now};
pub use time_left::time_left;
pub use trace_file::{TraceFile, replay_file};
