//! The changes of a record: by facts, by actions that a driver takes, and by the results of these.

use std::collections::BTreeSet;

use crate::action::Action;
use crate::decide::{Decision, decide};
use crate::entry::{Entry, Step, hold, is_as_before, observed};
use crate::machine::{Fact, Facts, MachineName};
use crate::policy::OnFailure;
use crate::record::{Phase, Record};
use crate::seconds::Moment;

/// The result of an action, as far as the driver has been told. Without a report the facts show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// The action is done.
    Done,
    /// The machine refused or failed, for this reason.
    Failed(String),
    /// Nothing was asked of the machine: it was not wanted any more when it was its turn, as by a pause, a stop or a hold.
    NotAsked,
}

impl Record {
    /// One round: takes the facts in, decides, and notes the actions that are about to be taken. `asked`: machines that this driver is asking
    /// already.
    pub fn go_on(&mut self, facts: &Facts, asked: &BTreeSet<MachineName>, now: Moment) -> Decision {
        self.observe(facts, now);
        let decision = decide(self, facts, now).without(asked);
        for action in &decision.actions {
            self.intend(action, facts, now);
        }
        decision
    }

    /// Takes the facts in: machines that have come to an end, the end of the rollout, a halt. Returns whether anything changed.
    pub fn observe(&mut self, facts: &Facts, now: Moment) -> bool {
        let before = self.clone();
        self.forgive_as_before();
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

    /// A record of an older version tells the number of the failures that a person has resumed after, not the machines: those that had failed then.
    fn forgive_as_before(&mut self) {
        let is_told = self.machines.values().any(|entry| entry.forgiven);
        if self.forgiven > 0 && self.failures() <= self.forgiven && !is_told {
            self.forgive();
        }
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
            let since = entry.step.since();
            let is_late = since.is_some_and(|since| now >= since.after(patience));
            // It had no chance to fail at anything.
            let takes_back = is_late
                && !self.may_be_asked(&name, entry, facts, now)
                && is_as_before(&entry.step, fact, &target);
            let next = observed(entry, fact, &target, patience, now);
            let Some(entry) = self.machines.get_mut(&name) else {
                continue;
            };
            match next {
                _ if takes_back => entry.take_back(now),
                Some(step) => entry.step = step,
                None => {}
            }
        }
    }

    /// Stops at too many failures.
    fn count_failures(&mut self) {
        let failures = self.failures();
        if self.phase != Phase::Rolling || failures < self.forgiven + self.most_failures() {
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

    /// Halts a rollout that cannot go on: at once if only a person can have it go on, and after the patience of its policies if machines are not ready.
    fn notice_a_stall(&mut self, facts: &Facts, now: Moment) {
        let decision = decide(self, facts, now);
        if let Some(why) = decision.waits_for_a_person() {
            self.stalled = None;
            self.phase = Phase::Halted { why };
            return;
        }
        let Some(why) = decision.stall() else {
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
                    let is_to_try_again = entry.step.is_before() && entry.began.is_some();
                    let has_to = matches!(entry.step, Step::Updated { .. }) || is_to_try_again;
                    if has_to && !is_held {
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
                entry.begin(fact.and_then(|fact| fact.running.clone()), mark, now);
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
            (action, step, Report::NotAsked) => {
                if action.is_intent_of(step) {
                    entry.take_back(now);
                    self.revision += 1;
                }
                return;
            }
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
}

#[cfg(test)]
mod tests;
