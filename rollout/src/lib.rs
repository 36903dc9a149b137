//! The engine of fleet upgrades: which machines may take a version now, and why each of the others waits.
//!
//! ```text
//!                    ┌───────────────────── driver (instarctl fleet, an operator) ─────────────────────┐
//!  machines ─ facts ─┤ observe: facts → record    decide: actions, a reason per machine    intend      │
//!                    │                                                                       │ saved   │
//!  machines ◄────────┤ act, then report ◄──────────────────────────────────────────────── record on disk
//!                    └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - [`Fact`]: what is seen of a machine now; it is never kept.
//! - [`Policy`]: limits on a rollout. Several policies combine as the intersection of all limits: a machine is upgraded when every policy
//!   that is for its pool allows it, the smallest number counts, and one policy that asks for the way back is enough.
//! - [`Record`]: the rollout as a value, a state machine with its picture in `record`. It is all that is kept between two runs.
//! - [`decide()`]: the pure function from record and facts to the next actions, with a [`Reason`] for each machine.
//!
//! # The key decision: the intent is recorded before the action, and the limits are counted from the record
//!
//! A driver saves [`Record::intend`] before it sends a request, so that a driver that is killed at any moment, or one on another machine
//! that takes over, finds each machine that may be out of service, counts it, and goes on with it. The other choice was to count the
//! machines that are seen to be away and to keep no record, as a controller does that derives everything from what it watches. It lost
//! because there is a time in which a request is sent and nothing can be seen of it yet: a driver that starts in that time begins with one
//! machine too many. For the same reason a failure is part of the record: the next driver must not try the version on the next machine.
//!
//! Drivers can write their rounds down as a trace ([`TracedRound`]). [`replay()`] puts a trace of a real run through the same functions, and checks the
//! same promises ([`broken()`]) as the model.
//!
//! The crate does no I/O and asks no clock: the driver brings facts and the time, so that tests and the model (`tests/model`, which
//! explores every crash, take-over and failure within its bounds) run the same functions as the programs. The clocks of the machines play no
//! part: their histories are compared by number.

#![forbid(unsafe_code)]

mod action;
mod command;
mod decide;
mod entry;
mod hours;
mod limits;
mod machine;
mod policy;
mod progress;
mod promises;
mod reason;
mod record;
mod seconds;
mod trace;
mod watched;

pub use action::Action;
pub use command::{Command, Refused};
pub use decide::{Decision, decide};
pub use entry::{Beginning, Entry, Member, Step};
pub use hours::{Hours, NotHours};
pub use machine::{Condition, Fact, Facts, MachineName, NotedFailure, Release};
pub use policy::{Approval, OnFailure, Percent, Policy, PoolOrder, Rate, Select, Wave};
pub use progress::Report;
pub use promises::broken;
pub use reason::Reason;
pub use record::{BadRollout, Phase, Record};
pub use seconds::{Moment, NotSeconds, Seconds};
pub use trace::{NotReplayed, Replayed, TracedRound, replay};
