//! A machine's part in a rollout, and its next step by the facts.
//!
//! ```text
//!                 intend: prepare          intend: switch               runs the version, ready
//!  Waiting ──────────────────────► Preparing ─► Prepared ─► Switching ────────────────────────► Updated ─┐
//!     │  │                             │                     ▲     │ its own failure, or too late   │ intend: go back
//!     │  └─── intend: switch ──────────┼─────────────────────┘     ▼                             │
//!     │                                └─ its own failure ───► Failed ──────── runs it ─────────┤
//!     ├── the rollout ends without it, or it is held ─► Left ◄── it is gone from its fleet    ▼
//!     ▲                                                   Stuck ◄── too late, refused ──── Returning ─► Returned
//!     └── it was not asked: a pause, a stop or a hold came first (from Preparing, Switching; from Returning to Updated)
//! ```
//!
//! A step with a moment in it (Preparing, Switching, Returning) is an intent: it is saved before the request is sent, so a driver that finds
//! it does not know whether the machine has been asked. It asks again if the machine shows no sign of it. A driver that was about to ask, and finds
//! that nobody may ask any more, reports that; then the intent is taken back. One that nobody may ask until its time is over is taken back as well,
//! if the machine is as before: it has failed at nothing.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::machine::{Condition, Fact, Facts, MachineName, Release};
use crate::seconds::{Moment, Seconds};

/// A machine's part in a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its pool; empty without pools.
    pub pool: String,
    /// Its labels, as in `canary=yes`.
    pub labels: BTreeSet<String>,
    /// The version that it ran when it was asked to change; the way back leads there.
    pub before: Option<Release>,
    /// When it was asked to change.
    pub began: Option<Moment>,
    /// Its beginning before that one, if it was to try again: it counts once more if the machine was not asked this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Beginning>,
    /// Why a person wants it left alone.
    pub hold: Option<String>,
    /// Whether a person has resumed the rollout since it failed or left: other machines wait no more for its proof.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgiven: bool,
    /// Where it is.
    pub step: Step,
}

/// A beginning of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beginning {
    /// The version that it ran.
    pub before: Option<Release>,
    /// When it was asked to change.
    pub at: Moment,
}

impl Entry {
    /// Notes that it is about to be asked to change. `running`: the version that it runs.
    pub(crate) fn begin(&mut self, running: Option<Release>, mark: u64, now: Moment) {
        let before = std::mem::replace(&mut self.before, running);
        let began = self.began.replace(now);
        self.earlier = began.map(|at| Beginning { before, at });
        self.step = Step::Switching { since: now, mark };
    }

    /// Takes an intent back: the machine was not asked.
    pub(crate) fn take_back(&mut self, now: Moment) {
        match self.step {
            // It may have begun before, and was to try again.
            Step::Preparing { .. } => self.step = Step::Waiting,
            Step::Switching { .. } => {
                // One that failed by the time alone may still come up with the version by its earlier beginning, and has to go back then.
                (self.before, self.began) = match self.earlier.take() {
                    Some(earlier) => (earlier.before, Some(earlier.at)),
                    None => (None, None),
                };
                self.step = Step::Waiting;
            }
            // It has to go back still; if it does not run the version, the facts show it.
            Step::Returning { .. } => self.step = Step::Updated { at: now },
            _ => {}
        }
    }
}

/// Where a machine is in a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum Step {
    /// It has not been asked for anything.
    Waiting,
    /// It is to fetch the image.
    Preparing {
        /// Since when.
        since: Moment,
    },
    /// It has the image.
    Prepared,
    /// It is to upgrade.
    Switching {
        /// Since when.
        since: Moment,
        /// The newest entry of its history then.
        mark: u64,
    },
    /// It runs the version, and has proved itself.
    Updated {
        /// Since when.
        at: Moment,
    },
    /// It failed.
    Failed {
        /// When.
        at: Moment,
        /// Why, in the machine's words where it has said something.
        why: String,
    },
    /// It is to go back.
    Returning {
        /// Since when.
        since: Moment,
        /// The newest entry of its history then.
        mark: u64,
    },
    /// It runs the previous version again.
    Returned {
        /// Since when.
        at: Moment,
    },
    /// It could not go back.
    Stuck {
        /// Why.
        why: String,
    },
    /// The rollout left it as it was.
    Left {
        /// Why.
        why: String,
    },
}

impl Step {
    /// Its word, for people.
    pub fn word(&self) -> &'static str {
        match self {
            Step::Waiting => "waiting",
            Step::Preparing { .. } => "preparing",
            Step::Prepared => "prepared",
            Step::Switching { .. } => "upgrading",
            Step::Updated { .. } => "updated",
            Step::Failed { .. } => "failed",
            Step::Returning { .. } => "going back",
            Step::Returned { .. } => "went back",
            Step::Stuck { .. } => "stuck",
            Step::Left { .. } => "left",
        }
    }

    /// Since when the machine is there, if that is known.
    pub fn since(&self) -> Option<Moment> {
        match self {
            Step::Preparing { since }
            | Step::Switching { since, .. }
            | Step::Returning { since, .. } => Some(*since),
            Step::Updated { at } | Step::Failed { at, .. } | Step::Returned { at } => Some(*at),
            Step::Waiting | Step::Prepared | Step::Stuck { .. } | Step::Left { .. } => None,
        }
    }

    /// Why the machine is there, if the step has a reason of its own.
    pub fn why(&self) -> Option<&str> {
        match self {
            Step::Failed { why, .. } | Step::Stuck { why } | Step::Left { why } => Some(why),
            _ => None,
        }
    }

    /// Whether the machine is to do something now: to prepare itself, to change, or to return.
    pub fn is_to_act(&self) -> bool {
        self.is_under_way() || matches!(self, Step::Preparing { .. })
    }

    /// Whether the machine may be out of service by the rollout's hand.
    pub fn is_under_way(&self) -> bool {
        matches!(self, Step::Switching { .. } | Step::Returning { .. })
    }

    /// Whether nothing has been changed yet.
    pub(crate) fn is_before(&self) -> bool {
        matches!(
            self,
            Step::Waiting | Step::Preparing { .. } | Step::Prepared
        )
    }
}

/// A machine of a new rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its pool; empty without pools.
    pub pool: String,
    /// Its labels, as in `canary=yes`.
    pub labels: BTreeSet<String>,
}

/// Why a person wants the machine left alone.
pub(crate) fn hold(name: &MachineName, entry: &Entry, facts: &Facts) -> Option<String> {
    let seen = facts.get(name).and_then(|fact| fact.hold.clone());
    entry.hold.clone().or(seen)
}

/// Whether a machine that was to do something is as if nobody had asked it. Until its time is over that may be so because it has not begun yet.
pub(crate) fn is_as_before(step: &Step, fact: &Fact, target: &Release) -> bool {
    match step {
        Step::Preparing { .. } => true,
        Step::Switching { mark, .. } => {
            fact.rests_without(target) && fact.failure_after(*mark).is_none()
        }
        Step::Returning { .. } => fact.is_ready_with(target),
        _ => false,
    }
}

/// The next step of a machine, as far as the facts show one.
pub(crate) fn observed(
    entry: &Entry,
    fact: &Fact,
    target: &Release,
    patience: Seconds,
    now: Moment,
) -> Option<Step> {
    if let Condition::Gone(why) = &fact.condition
        && (entry.step.is_before() || entry.step.is_under_way())
    {
        return Some(Step::Left { why: why.clone() });
    }
    let is_late = |since: Moment| now >= since.after(patience);
    let too_late = |doing: &str| {
        let seen = match &fact.condition {
            Condition::Ready => "it runs as before".to_owned(),
            Condition::NotReady(why) => format!("it is not ready: {why}"),
            Condition::Busy => "it is still busy".to_owned(),
            Condition::Away(why) | Condition::Gone(why) => format!("it does not answer: {why}"),
        };
        format!("{doing} within {patience}; {seen}")
    };
    match &entry.step {
        // One that was left may have come back with the version.
        Step::Waiting | Step::Prepared | Step::Left { .. } if fact.is_ready_with(target) => {
            Some(Step::Updated { at: now })
        }
        Step::Preparing { since } if is_late(*since) => Some(Step::Failed {
            at: now,
            why: too_late("it did not get the image"),
        }),
        Step::Switching { .. } if fact.is_ready_with(target) => Some(Step::Updated { at: now }),
        Step::Switching { since, mark } => match fact.failure_after(*mark) {
            Some(why) if fact.condition != Condition::Busy && !fact.runs(target) => {
                Some(Step::Failed {
                    at: now,
                    why: why.to_owned(),
                })
            }
            _ if is_late(*since) => Some(Step::Failed {
                at: now,
                why: too_late("it did not prove itself"),
            }),
            _ => None,
        },
        // It went back by itself later, or a person had it go back.
        Step::Updated { .. } if fact.is_ready_without(target) => Some(Step::Failed {
            at: now,
            why: match &fact.failure {
                Some(failure) => format!("it does not run the version any more: {}", failure.why),
                None => "it does not run the version any more".to_owned(),
            },
        }),
        Step::Returning { .. } if fact.is_ready_without(target) => Some(Step::Returned { at: now }),
        Step::Returning { since, .. } if is_late(*since) => Some(Step::Stuck {
            why: too_late("it did not go back"),
        }),
        _ => None,
    }
}
