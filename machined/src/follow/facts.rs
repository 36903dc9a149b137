//! The facts about a machine that follows a channel, and its policy: what each step is decided by.

use instar_channel::Release;
use serde::{Deserialize, Serialize};

use crate::values::{Digest, Window};

/// A slot of the fleet's lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockPlace {
    /// The server's address.
    pub url: String,
    /// The group.
    pub group: String,
}

/// The release that the channel has for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen<'a> {
    /// No list was read yet since machined started.
    Unknown,
    /// None. `offers_failed`: the channel still offers one that failed here.
    None {
        /// See there.
        offers_failed: bool,
    },
    /// This one.
    Release {
        /// The release.
        release: &'a Release,
        /// Whether the channel still offers a newer one that failed here, or this one has failed and its hold is over.
        offers_failed: bool,
    },
}

/// Whether the image of the target is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// Not yet, for this reason.
    No(String),
    /// It is, and it is another one than the channel says.
    Wrong(String),
    /// It is.
    Yes,
}

/// The answer of the fleet's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockAnswer {
    /// It was not asked, or its answer is old.
    Unasked,
    /// The machine has the lock.
    Granted,
    /// The machine does not get it now.
    Refused(String),
}

/// The facts about the machine at this moment.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The time, in seconds since 1970.
    pub now: u64,
    /// Whether that time can be trusted.
    pub knows_time: bool,
    /// The channel's release for this machine.
    pub chosen: Chosen<'a>,
    /// Whether the list was asked for a short time ago.
    pub list_is_fresh: bool,
    /// The running version.
    pub running: &'a str,
    /// The digest of the image that it came from, if that is known.
    pub running_digest: Option<Digest>,
    /// Why the image of the stage's release has failed here, if it has.
    pub failure: Option<String>,
    /// Whether the image of the target is here.
    pub fetched: Fetched,
    /// Whether the target has the signature that approves it.
    pub is_signed: bool,
    /// Whether another operation is under way, or the machine does not run yet.
    pub is_busy: bool,
    /// The answer of the fleet's lock.
    pub lock: LockAnswer,
    /// For how many seconds the machine has been ready without a break.
    pub ready_for: Option<u64>,
    /// For how many seconds this has been watched, since machined started.
    pub watched_for: u64,
    /// The start of machined, by a name that no other one has.
    pub start: String,
}

/// How the machine follows.
#[derive(Debug, Clone)]
pub struct Policy<'a> {
    /// The machine's own delay with this release, in seconds.
    pub delay: u64,
    /// When the machine may switch; `None`: at any time.
    pub window: Option<&'a Window>,
    /// Whether somebody has to approve the release.
    pub needs_approval: bool,
    /// The fleet's lock; `None`: there is none.
    pub lock: Option<&'a LockPlace>,
    /// How long a version has to be ready, in seconds.
    pub healthy_for: u64,
    /// How long a failed release is held, in seconds.
    pub hold_for: Option<u64>,
}
