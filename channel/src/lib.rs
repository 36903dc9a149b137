//! Channels: signed lists of releases that machines follow.
//!
//! ```text
//!  publisher                    anywhere                     machine
//!  change ──► List ──► bytes ──► mirror, bundle ──► open: signature, form, name ──► List
//!               │                                   Position: never an older list     │
//!             signature                                                      choose: one release, and a reason for each other
//! ```
//!
//! - [`List`]: the releases of a channel, in one form of bytes only ([`List::to_bytes`]).
//! - [`ChannelFiles`]: a list, its signature and approvals, as somebody carries them.
//! - [`open`]: from signed bytes to a list; nothing of a list is read before its signature is good.
//! - [`Position`]: how far a machine has come, so that no mirror can show it an older list.
//! - [`choose()`]: the release that a machine goes to.
//! - [`change`]: what a publisher does to a list.
//!
//! # The key decision: the whole list is signed, and the machine chooses
//!
//! A machine gets all releases of its channel with their rules, and finds its own next one. The other choice was a server that answers each
//! machine with its next release. It lost because such a server has to be trusted and has to be there: a list can be served by any mirror,
//! lie on a stick, and be checked a year later, and two people who read it come to the same answer.
//!
//! The crate does no I/O and asks no clock.

#![forbid(unsafe_code)]

mod candidate;
pub mod change;
mod choose;
mod date;
mod files;
mod label;
mod list;
mod name;
mod position;
mod signed;

pub use candidate::{NotACandidate, Offer};
pub use choose::{Choice, Follower, Why, choose};
pub use date::{Date, NotADate};
pub use files::{ChannelFiles, LARGEST_SIGNATURE, NotChannelFiles};
pub use label::{Label, NotALabel};
pub use list::{FORMAT, LARGEST, List, MOST_RELEASES, NotAList, Release};
pub use name::{ChannelName, NotAChannelName};
pub use position::{Position, Replayed};
pub use signed::{LIST, Refused, SIGNATURE, approval, is_signed, open};
