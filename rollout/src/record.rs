//! The record of a rollout: all that is kept between two runs of a driver.
//!
//! ```text
//!            all machines have ended
//!  Rolling ──────────────────────────► Done
//!   │ ▲ │  too many failures, or nothing can go on
//!   │ │ ├────────────────────────────► Halted ──┐ roll back, by a policy or a person
//!   │ └─┼────── resume ──────────────────┘       ▼
//!   │   └──────────────────────────────────► GoingBack ─► WentBack
//!   └── abort ─► Aborted
//! ```
//!
//! In every phase machines that are under way are followed to their end. Paused is a mark beside the phase: nothing new begins.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Member, Step, hold};
use crate::machine::{Condition, Facts, MachineName, Release};
use crate::policy::{Policy, Select};
use crate::seconds::{Moment, Seconds};

/// The format of records that this version writes and reads.
const FORMAT: u32 = 1;

/// A rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The format of the record.
    pub format: u32,
    /// Counts the changes. A store that several drivers reach saves a record only over the revision that it was read with.
    pub revision: u64,
    /// The version that machines get.
    pub target: Release,
    /// The limits.
    pub policies: Vec<Policy>,
    /// The rollout's phase.
    pub phase: Phase,
    /// Why a person paused it; none if it is not paused.
    pub paused: Option<String>,
    /// The number of waves that a person has approved.
    pub approved: usize,
    /// The number of failures that a person has seen and resumed after.
    pub forgiven: usize,
    /// Since when nothing can go on because machines are not ready.
    pub stalled: Option<Moment>,
    /// When a driver saved it last, by that driver's clock; none after the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_at: Option<Moment>,
    /// All machines.
    pub machines: BTreeMap<MachineName, Entry>,
}

/// The policies are those of the beginning, so they cannot tell two states of a rollout apart.
impl Hash for Record {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.phase, &self.paused, self.approved, self.forgiven).hash(state);
        (&self.stalled, &self.machines, self.revision).hash(state);
    }
}

/// The phase of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum Phase {
    /// Machines get the version.
    Rolling,
    /// It stopped by itself, for this reason.
    Halted {
        /// Why.
        why: String,
    },
    /// Machines that run the version go back.
    GoingBack {
        /// Why.
        why: String,
    },
    /// A person ended it.
    Aborted,
    /// All machines have ended.
    Done,
    /// All machines that could go back have gone back.
    WentBack {
        /// Why.
        why: String,
    },
}

impl Phase {
    /// Its word, for people.
    pub fn word(&self) -> &'static str {
        match self {
            Phase::Rolling => "rolling",
            Phase::Halted { .. } => "stopped",
            Phase::GoingBack { .. } => "going back",
            Phase::Aborted => "aborted",
            Phase::Done => "done",
            Phase::WentBack { .. } => "went back",
        }
    }

    /// Why it is in this phase, if the word does not say it.
    pub fn why(&self) -> Option<&str> {
        match self {
            Phase::Halted { why } | Phase::GoingBack { why } | Phase::WentBack { why } => Some(why),
            Phase::Rolling | Phase::Aborted | Phase::Done => None,
        }
    }
}

/// A rollout that could never end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRollout {
    /// No machine.
    #[error("there is no machine to upgrade")]
    NoMachine,
    /// A policy names a pool without machines.
    #[error("a policy names the pool {0:?}, which has no machine")]
    NoPool(String),
    /// Pools that wait for each other.
    #[error("the order of pools is a circle: {0:?} waits for itself")]
    Circle(String),
    /// A wave without machines: nothing would prove the version before the machines after it begin.
    #[error(
        "wave {wave} selects no machine: none that is left has the label {label}, and the machines after it would begin without a proof"
    )]
    EmptyWave {
        /// Its number, from 1.
        wave: usize,
        /// The label that it selects by. Numbers and shares always find a machine.
        label: String,
    },
    /// A record of another version.
    #[error("the record has format {0}; this version reads format {FORMAT}")]
    Format(u32),
}

impl Record {
    /// Begins a rollout.
    ///
    /// # Errors
    /// It could never end.
    pub fn begin(
        target: Release,
        policies: Vec<Policy>,
        members: BTreeMap<MachineName, Member>,
    ) -> Result<Self, BadRollout> {
        let machines = members.into_iter().map(|(name, member)| {
            let entry = Entry {
                pool: member.pool,
                labels: member.labels,
                before: None,
                began: None,
                earlier: None,
                hold: None,
                forgiven: false,
                step: Step::Waiting,
            };
            (name, entry)
        });
        let record = Self {
            format: FORMAT,
            revision: 0,
            target,
            policies,
            phase: Phase::Rolling,
            paused: None,
            approved: 0,
            forgiven: 0,
            stalled: None,
            saved_at: None,
            machines: machines.collect(),
        };
        record.check()?;
        record.check_waves()?;
        Ok(record)
    }

    /// Checks a record that was just made or read.
    ///
    /// # Errors
    /// This version cannot work with it, or it could never end.
    pub fn check(&self) -> Result<(), BadRollout> {
        if self.format != FORMAT {
            return Err(BadRollout::Format(self.format));
        }
        if self.machines.is_empty() {
            return Err(BadRollout::NoMachine);
        }
        let pools: BTreeSet<&str> = self.machines.values().map(|it| it.pool.as_str()).collect();
        let orders = self.policies.iter().flat_map(|policy| &policy.order);
        let named = orders
            .clone()
            .flat_map(|order| order.after.iter().chain([&order.pool]));
        let named = named.chain(self.policies.iter().flat_map(|policy| &policy.pools));
        if let Some(missing) = named
            .into_iter()
            .find(|pool| !pools.contains(pool.as_str()))
        {
            return Err(BadRollout::NoPool(missing.clone()));
        }
        match pools.iter().find(|pool| self.waits_for_itself(pool)) {
            Some(pool) => Err(BadRollout::Circle((*pool).to_owned())),
            None => Ok(()),
        }
    }

    /// Checks the waves at the beginning. Later a wave may well lose its machines.
    fn check_waves(&self) -> Result<(), BadRollout> {
        for policy in &self.policies {
            let machines = self.machines.iter();
            let machines: Vec<_> = machines.filter(|(_, entry)| policy.is_for(entry)).collect();
            let waves = policy.waves_of(&machines);
            let last = waves
                .iter()
                .map(|(_, wave)| *wave)
                .max()
                .unwrap_or_default();
            for (number, wave) in policy.waves.iter().enumerate().take(last) {
                if let Select::Label(label) = &wave.select
                    && !waves.iter().any(|(_, of)| *of == number)
                {
                    return Err(BadRollout::EmptyWave {
                        wave: number + 1,
                        label: label.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    fn waits_for_itself(&self, pool: &str) -> bool {
        let mut before = self.pools_before(pool);
        let mut seen = BTreeSet::new();
        while let Some(next) = before.pop() {
            if next == pool {
                return true;
            }
            if seen.insert(next) {
                before.extend(self.pools_before(next));
            }
        }
        false
    }

    /// The pools that have to be done before this one begins.
    pub(crate) fn pools_before(&self, pool: &str) -> Vec<&str> {
        let orders = self.policies.iter().flat_map(|policy| &policy.order);
        orders
            .filter(|order| order.pool == pool)
            .flat_map(|order| order.after.iter().map(String::as_str))
            .collect()
    }

    /// Whether the rollout has ended, and no machine is under way.
    pub fn has_ended(&self) -> bool {
        let is_over = !matches!(self.phase, Phase::Rolling | Phase::GoingBack { .. });
        is_over
            && !self
                .machines
                .values()
                .any(|entry| entry.step.is_under_way())
    }

    /// The number of machines that failed.
    pub fn failures(&self) -> usize {
        let failed = |entry: &&Entry| matches!(entry.step, Step::Failed { .. });
        self.machines.values().filter(failed).count()
    }

    /// The number of failures at which the rollout stops: the smallest one of all policies.
    pub(crate) fn most_failures(&self) -> usize {
        let all = self.policies.iter();
        all.map(|policy| policy.max_failures.get() as usize)
            .min()
            .unwrap_or(1)
    }

    /// The time that a machine has for one action: the shortest one of the policies of its pool.
    pub fn patience_of(&self, name: &MachineName) -> Seconds {
        let entry = self.machines.get(name);
        entry.map_or(Policy::default().patience, |entry| self.patience(entry))
    }

    /// The shortest time that a policy gives to a machine.
    pub(crate) fn patience(&self, entry: &Entry) -> Seconds {
        let policies = self.policies.iter().filter(|policy| policy.is_for(entry));
        let shortest = policies.map(|policy| policy.patience).min();
        shortest.unwrap_or(Policy::default().patience)
    }

    /// Whether a machine runs the version by this rollout, and may be touched.
    pub(crate) fn has_to_go_back(&self, name: &MachineName, entry: &Entry, facts: &Facts) -> bool {
        let runs_it = match entry.step {
            Step::Updated { .. } => true,
            // Too late, but it may come up with the version after all; also one that is to try again, and has not begun anew.
            Step::Failed { .. } | Step::Waiting | Step::Preparing { .. } | Step::Prepared => {
                facts.get(name).is_none_or(|fact| {
                    fact.runs(&self.target)
                        || matches!(fact.condition, Condition::Away(_) | Condition::Busy)
                })
            }
            _ => false,
        };
        runs_it && entry.began.is_some() && hold(name, entry, facts).is_none()
    }
}
