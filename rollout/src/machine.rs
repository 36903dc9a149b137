//! The facts about a machine now. They are asked for anew in every round, and never kept, except in a trace.

use std::collections::BTreeMap;
use std::fmt;

use instar_values::Digest;
use serde::{Deserialize, Serialize};

/// The name of a machine in its fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MachineName(String);

impl MachineName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for MachineName {
    fn from(name: T) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A version, and the image that it came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Release {
    /// As in `v0.2.0`.
    pub version: String,
    /// Digest of the image's manifest; none for a version that came from a medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The image's name; none for a version that came from a medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl Release {
    /// Whether both are the same. The digest is the identity; where one of the two has none, the version has to do.
    pub fn is(&self, other: &Release) -> bool {
        match (&self.digest, &other.digest) {
            (Some(digest), Some(other)) => digest == other,
            _ => self.version == other.version,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.version)
    }
}

/// The condition of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", content = "why", rename_all = "camelCase")]
pub enum Condition {
    /// It runs, and has proved itself.
    Ready,
    /// It answers, but is not ready, for this reason of its own.
    NotReady(String),
    /// It carries out an upgrade, or has not proved itself after one.
    Busy,
    /// It does not answer.
    Away(String),
    /// It is no machine of its fleet any more: nobody waits for it.
    Gone(String),
}

/// The newest failure in a machine's own history.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NotedFailure {
    /// Its number in the history.
    pub number: u64,
    /// Why, in the machine's words.
    pub why: String,
}

/// The facts about one machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fact {
    /// Its condition.
    pub condition: Condition,
    /// The version that it runs, if it answers.
    pub running: Option<Release>,
    /// The number of the newest entry in its history of upgrades; 0 if it has none.
    pub history: u64,
    /// The newest failure in that history.
    pub failure: Option<NotedFailure>,
    /// Why a person wants it left alone: a cordon, a lock. Never taken back by the engine.
    pub hold: Option<String>,
}

impl Fact {
    /// A machine that does not answer.
    pub fn away(why: impl Into<String>) -> Self {
        Self {
            condition: Condition::Away(why.into()),
            running: None,
            history: 0,
            failure: None,
            hold: None,
        }
    }

    /// A machine that its fleet does not have any more. It is left alone as well.
    pub fn gone(why: impl Into<String>) -> Self {
        let why = why.into();
        Self {
            condition: Condition::Gone(why.clone()),
            hold: Some(why),
            ..Self::away("")
        }
    }

    /// Whether it is ready and runs this release.
    pub(crate) fn is_ready_with(&self, release: &Release) -> bool {
        self.condition == Condition::Ready && self.runs(release)
    }

    /// Whether it is ready and runs another release.
    pub(crate) fn is_ready_without(&self, release: &Release) -> bool {
        self.condition == Condition::Ready && self.running.is_some() && !self.runs(release)
    }

    /// Whether it answers, is busy with nothing, and runs another release.
    pub(crate) fn rests_without(&self, release: &Release) -> bool {
        let rests = matches!(self.condition, Condition::Ready | Condition::NotReady(_));
        rests && self.running.is_some() && !self.runs(release)
    }

    pub(crate) fn runs(&self, release: &Release) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.is(release))
    }

    /// The failure that its history has noted after this entry.
    pub(crate) fn failure_after(&self, mark: u64) -> Option<&str> {
        let failure = self.failure.as_ref()?;
        (failure.number > mark).then_some(failure.why.as_str())
    }
}

/// Facts by machine. A machine without a fact is away.
pub type Facts = BTreeMap<MachineName, Fact>;
