//! The record of a rollout: all that is kept between two runs of a driver.
//!
//! ```text
//!  a machine:
//!
//!                 intend: prepare          intend: switch               runs the version, ready
//!  Waiting ──────────────────────► Preparing ─► Prepared ─► Switching ────────────────────────► Updated ─┐
//!     │  │                             │                     ▲     │ its own failure, or too late   │ intend: go back
//!     │  └─── intend: switch ──────────┼─────────────────────┘     ▼                             │
//!     │                                └─ its own failure ───► Failed ──────── runs it ─────────┤
//!     └── the rollout ends without it, or it is held ─► Left                                  ▼
//!                                                         Stuck ◄── too late, refused ──── Returning ─► Returned
//!
//!  the rollout:
//!
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
//!
//! A step with a moment in it (Preparing, Switching, Returning) is an intent: it is saved before the request is sent, so a driver that finds
//! it does not know whether the machine has been asked. It asks again if the machine shows no sign of it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::decide::{Action, decide};
use crate::machine::{Condition, Fact, Facts, MachineName, Release};
use crate::policy::{OnFailure, Policy};
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
    /// Why a person wants it left alone.
    pub hold: Option<String>,
    /// Where it is.
    pub step: Step,
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
    /// It runs the version of before again.
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
    /// A record of another version.
    #[error("the record has format {0}; this version reads format {FORMAT}")]
    Format(u32),
}

/// What came of an action, as far as the driver has been told. Without a report the facts show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// The action is done.
    Done,
    /// The machine refused or failed, for this reason.
    Failed(String),
}

/// A person's command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Let nothing new begin.
    Pause(String),
    /// Go on after a pause, or after a halt.
    Resume,
    /// End the rollout; machines that are under way come to their end.
    Abort,
    /// Have machines that run the version go back.
    Rollback(String),
    /// Approve one more wave.
    Approve,
    /// Leave a machine alone.
    Hold(MachineName, String),
    /// Take a hold back.
    Release(MachineName),
}

/// A command that makes no sense now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The rollout has ended.
    #[error("the rollout has ended")]
    Ended,
    /// It goes back already.
    #[error("the rollout goes back: it can be paused, resumed or aborted")]
    GoesBack,
    /// There is no such machine.
    #[error("{0} is no machine of this rollout")]
    NoMachine(MachineName),
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
                hold: None,
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
            machines: machines.collect(),
        };
        record.check()?;
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

    /// The shortest time that a policy gives to a machine.
    pub(crate) fn patience(&self, entry: &Entry) -> Seconds {
        let policies = self.policies.iter().filter(|policy| policy.is_for(entry));
        let shortest = policies.map(|policy| policy.patience).min();
        shortest.unwrap_or(Policy::default().patience)
    }

    /// Takes the facts in: machines that have come to an end, the end of the rollout, a halt. Returns whether anything changed.
    pub fn observe(&mut self, facts: &Facts, now: Moment) -> bool {
        let before = self.clone();
        self.observe_machines(facts, now);
        self.count_failures();
        self.close(facts);
        self.notice_a_stall(facts, now);
        let changed = *self != before;
        if changed {
            self.revision += 1;
        }
        changed
    }

    fn observe_machines(&mut self, facts: &Facts, now: Moment) {
        let target = self.target.clone();
        let away = Fact::away("it was not asked");
        let names: Vec<MachineName> = self.machines.keys().cloned().collect();
        for name in names {
            let fact = facts.get(&name).unwrap_or(&away);
            let Some(entry) = self.machines.get(&name) else {
                continue;
            };
            let patience = self.patience(entry);
            if let Some(step) = observed(entry, fact, &target, patience, now)
                && let Some(entry) = self.machines.get_mut(&name)
            {
                entry.step = step;
            }
        }
    }

    /// Stops at too many failures.
    fn count_failures(&mut self) {
        let most = self
            .policies
            .iter()
            .map(|policy| policy.max_failures.get())
            .min();
        let most = most.unwrap_or(1) as usize;
        let failures = self.failures();
        if self.phase != Phase::Rolling || failures < self.forgiven + most {
            return;
        }
        let failed = self
            .machines
            .iter()
            .filter_map(|(name, entry)| match &entry.step {
                Step::Failed { why, .. } => Some(format!("{name}: {why}")),
                _ => None,
            });
        let why = failed.collect::<Vec<_>>().join("; ");
        let goes_back = self
            .policies
            .iter()
            .any(|policy| policy.on_failure == OnFailure::Rollback);
        self.phase = match goes_back {
            true => Phase::GoingBack { why },
            false => Phase::Halted { why },
        };
    }

    /// Ends the rollout when all machines have ended. Who is held is left as it is.
    fn close(&mut self, facts: &Facts) {
        if self
            .machines
            .values()
            .any(|entry| entry.step.is_under_way())
        {
            return;
        }
        match &self.phase {
            Phase::Rolling => {
                let open = |(name, entry): &(&MachineName, &Entry)| {
                    entry.step.is_before() && hold(name, entry, facts).is_none()
                };
                if self.machines.iter().any(|pair| open(&pair)) {
                    return;
                }
                for (name, entry) in &mut self.machines {
                    if entry.step.is_before()
                        && let Some(why) = hold(name, entry, facts)
                    {
                        entry.step = Step::Left {
                            why: format!("held: {why}"),
                        };
                    }
                }
                self.phase = Phase::Done;
            }
            Phase::GoingBack { why } => {
                let why = why.clone();
                let open =
                    |(name, entry): (&MachineName, &Entry)| self.has_to_go_back(name, entry, facts);
                if !self.machines.iter().any(open) {
                    self.phase = Phase::WentBack { why };
                }
            }
            _ => {}
        }
    }

    /// Whether a machine runs the version by this rollout, and may be touched.
    pub(crate) fn has_to_go_back(&self, name: &MachineName, entry: &Entry, facts: &Facts) -> bool {
        let runs_it = match entry.step {
            Step::Updated { .. } => true,
            // Too late, but it may come up with the version after all.
            Step::Failed { .. } => facts.get(name).is_none_or(|fact| {
                fact.runs(&self.target)
                    || matches!(fact.condition, Condition::Away(_) | Condition::Busy)
            }),
            _ => false,
        };
        runs_it && entry.began.is_some() && hold(name, entry, facts).is_none()
    }

    /// Halts a rollout that cannot go on because machines are not ready, after the patience of its policies.
    fn notice_a_stall(&mut self, facts: &Facts, now: Moment) {
        let Some(why) = decide(self, facts, now).stall() else {
            self.stalled = None;
            return;
        };
        let since = *self.stalled.get_or_insert(now);
        let patience = self
            .machines
            .values()
            .map(|entry| self.patience(entry))
            .max();
        if now < since.after(patience.unwrap_or_default()) {
            return;
        }
        self.stalled = None;
        match self.phase.clone() {
            Phase::Rolling => self.phase = Phase::Halted { why },
            Phase::GoingBack { why: first } => {
                for (name, entry) in &mut self.machines {
                    let is_held = hold(name, entry, facts).is_some();
                    if matches!(entry.step, Step::Updated { .. }) && !is_held {
                        entry.step = Step::Stuck { why: why.clone() };
                    }
                }
                self.phase = Phase::WentBack { why: first };
            }
            _ => {}
        }
    }

    /// Notes an action that is about to be taken. Save the record before you take it.
    pub fn intend(&mut self, action: &Action, facts: &Facts, now: Moment) {
        let fact = facts.get(action.machine());
        let mark = fact.map_or(0, |fact| fact.history);
        let Some(entry) = self.machines.get_mut(action.machine()) else {
            return;
        };
        match action {
            // Asked again: it counts from the first time.
            Action::Prepare(_) if matches!(entry.step, Step::Preparing { .. }) => return,
            Action::Switch(_) if matches!(entry.step, Step::Switching { .. }) => return,
            Action::Return(_) if matches!(entry.step, Step::Returning { .. }) => return,
            Action::Prepare(_) => entry.step = Step::Preparing { since: now },
            Action::Switch(_) => {
                entry.before = fact.and_then(|fact| fact.running.clone());
                entry.began = Some(now);
                entry.step = Step::Switching { since: now, mark };
            }
            Action::Return(_) => entry.step = Step::Returning { since: now, mark },
        }
        self.revision += 1;
    }

    /// Takes in what came of an action. A report that comes late changes nothing.
    pub fn report(&mut self, action: &Action, report: Report, now: Moment) {
        let Some(entry) = self.machines.get_mut(action.machine()) else {
            return;
        };
        let step = match (action, &entry.step, report) {
            (Action::Prepare(_), Step::Preparing { .. }, Report::Done) => Step::Prepared,
            (Action::Prepare(_), Step::Preparing { .. }, Report::Failed(why))
            | (Action::Switch(_), Step::Switching { .. }, Report::Failed(why)) => {
                Step::Failed { at: now, why }
            }
            (Action::Switch(_), Step::Switching { .. }, Report::Done) => Step::Updated { at: now },
            (Action::Return(_), Step::Returning { .. }, Report::Done) => Step::Returned { at: now },
            (Action::Return(_), Step::Returning { .. }, Report::Failed(why)) => Step::Stuck { why },
            _ => return,
        };
        entry.step = step;
        self.revision += 1;
    }

    /// Carries out a person's command.
    ///
    /// # Errors
    /// It makes no sense now; nothing changed.
    pub fn command(&mut self, command: Command) -> Result<(), Refused> {
        let ends = matches!(
            self.phase,
            Phase::Aborted | Phase::Done | Phase::WentBack { .. }
        );
        let goes_back = matches!(self.phase, Phase::GoingBack { .. });
        match command {
            // The one thing to do after the end.
            Command::Rollback(why)
                if !matches!(self.phase, Phase::WentBack { .. }) && !goes_back =>
            {
                self.phase = Phase::GoingBack { why };
                self.paused = None;
            }
            _ if ends => return Err(Refused::Ended),
            Command::Rollback(_) | Command::Approve if goes_back => return Err(Refused::GoesBack),
            Command::Rollback(_) => return Err(Refused::Ended),
            Command::Pause(why) => self.paused = Some(why),
            Command::Resume => {
                self.paused = None;
                if let Phase::Halted { .. } = self.phase {
                    self.forgiven = self.failures();
                    self.phase = Phase::Rolling;
                }
            }
            Command::Abort => {
                self.paused = None;
                self.phase = Phase::Aborted;
            }
            Command::Approve => self.approved += 1,
            Command::Hold(name, why) => self.entry(name)?.hold = Some(why),
            Command::Release(name) => self.entry(name)?.hold = None,
        }
        self.stalled = None;
        self.revision += 1;
        Ok(())
    }

    fn entry(&mut self, name: MachineName) -> Result<&mut Entry, Refused> {
        self.machines.get_mut(&name).ok_or(Refused::NoMachine(name))
    }
}

/// Why a person wants the machine left alone.
pub(crate) fn hold(name: &MachineName, entry: &Entry, facts: &Facts) -> Option<String> {
    let seen = facts.get(name).and_then(|fact| fact.hold.clone());
    entry.hold.clone().or(seen)
}

/// The next step of a machine, as far as the facts show one.
fn observed(
    entry: &Entry,
    fact: &Fact,
    target: &Release,
    patience: Seconds,
    now: Moment,
) -> Option<Step> {
    let is_late = |since: Moment| now >= since.after(patience);
    let too_late = |doing: &str| {
        let seen = match &fact.condition {
            Condition::Ready => "it runs as before".to_owned(),
            Condition::NotReady(why) => format!("it is not ready: {why}"),
            Condition::Busy => "it is still busy".to_owned(),
            Condition::Away(why) => format!("it does not answer: {why}"),
        };
        format!("{doing} within {patience}; {seen}")
    };
    match &entry.step {
        Step::Waiting | Step::Prepared if fact.is_ready_with(target) => {
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

#[cfg(test)]
mod tests;
