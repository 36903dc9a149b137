//! The resource of a machine that follows a channel.

use std::time::SystemTime;

use serde::Serialize;

use crate::store::Resource;
use crate::values::{Digest, Version};

/// A machine that follows a channel. Its id is the channel's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowFact {
    /// The serial of the newest list, if one was seen.
    pub serial: Option<u64>,
    /// The version that it goes to; empty if there is none.
    pub release: String,
    /// The digest of its image.
    pub digest: String,
    /// The state in one word.
    pub state: &'static str,
    /// Why.
    pub reason: String,
    /// Until when, if that is known.
    pub until: Option<SystemTime>,
    /// The last look at the list.
    pub heard: Option<Heard>,
    /// All releases of the list.
    pub releases: Vec<ReleaseFact>,
}

/// A look at the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Heard {
    /// When.
    pub at: SystemTime,
    /// When the next one is due.
    pub next: SystemTime,
    /// Why it failed; empty if it did not.
    pub error: String,
}

/// A release of the list, and why the machine goes to it or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseFact {
    /// Its version; a list has each one once for each architecture.
    pub version: Version,
    /// The architecture that it is for.
    pub architecture: String,
    /// The digest of its image.
    pub digest: Digest,
    /// Why.
    pub why: String,
}

impl Resource for FollowFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "UpgradeFollows.instar.dev";
}
