//! The decision: from a record, facts and the time to the next actions, with a reason for each machine. A pure function.

use std::collections::{BTreeMap, BTreeSet};

use crate::action::Action;
use crate::entry::{Step, hold};
use crate::limits::{Candidate, Waves};
use crate::machine::{Condition, Facts, MachineName};
use crate::reason::Reason;
use crate::record::{Phase, Record};
use crate::seconds::Moment;

/// The next actions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Actions to take, each after [`Record::intend`] was saved.
    pub actions: Vec<Action>,
    /// The reason of each machine.
    pub reasons: BTreeMap<MachineName, Reason>,
    is_under_way: bool,
}

impl Decision {
    /// The actions without those of machines that this driver is asking already.
    #[must_use]
    pub fn without(mut self, asked: &BTreeSet<MachineName>) -> Self {
        self.actions
            .retain(|action| !asked.contains(action.machine()));
        self
    }

    /// Why nothing can go on before a machine gets well by itself; none if something can.
    pub(crate) fn stall(&self) -> Option<String> {
        if !self.actions.is_empty()
            || self.is_under_way
            || self.reasons.values().any(Reason::ends_otherwise)
        {
            return None;
        }
        self.nothing_goes_on(Reason::is_a_machine_that_is_not_well)
    }

    /// Why nothing can go on before a person says so; none if something can, also if a machine gets well by itself.
    pub(crate) fn waits_for_a_person(&self) -> Option<String> {
        let mut reasons = self.reasons.values();
        let may_go_on =
            |reason: &Reason| reason.ends_otherwise() || reason.is_a_machine_that_is_not_well();
        if !self.actions.is_empty() || self.is_under_way || reasons.any(may_go_on) {
            return None;
        }
        self.nothing_goes_on(|reason| {
            matches!(reason, Reason::WaveFailed(_) | Reason::PoolFailed(_))
        })
    }

    fn nothing_goes_on(&self, because: impl Fn(&Reason) -> bool) -> Option<String> {
        let mut reasons = self.reasons.iter();
        let (name, reason) = reasons.find(|(_, reason)| because(reason))?;
        Some(format!("nothing can go on: {name} {reason}"))
    }
}

/// Decides what to do next. Call [`Record::observe`] with the same facts first.
pub fn decide(record: &Record, facts: &Facts, now: Moment) -> Decision {
    let mut deciding = Deciding {
        // Each action that is decided on counts for the machines after it.
        ahead: record.clone(),
        waves: record
            .policies
            .iter()
            .map(|it| it.waves_in(&record.machines))
            .collect(),
        facts,
        now,
        decision: Decision::default(),
    };
    for name in record.machines.keys() {
        let reason = deciding.reason(name);
        deciding.decision.reasons.insert(name.clone(), reason);
    }
    let mut entries = record.machines.values();
    deciding.decision.is_under_way = entries.any(|entry| entry.step.is_to_act());
    deciding.decision
}

struct Deciding<'a> {
    ahead: Record,
    /// The waves of each policy: no action changes them.
    waves: Vec<Waves<'a>>,
    facts: &'a Facts,
    now: Moment,
    decision: Decision,
}

impl Deciding<'_> {
    fn reason(&mut self, name: &MachineName) -> Reason {
        let Some(entry) = self.ahead.machines.get(name) else {
            return Reason::Stopped;
        };
        match &entry.step {
            Step::Waiting | Step::Preparing { .. } | Step::Prepared => self.before(name),
            // After a stop nothing is begun, not even what was to begin before it: the version may have failed elsewhere meanwhile.
            Step::Switching { .. } => match self.shows_no_sign(name, false) {
                true => self.again(name, Action::Switch(name.clone()), Reason::Upgrades),
                false => Reason::Upgrades,
            },
            Step::Returning { .. } => match self.shows_no_sign(name, true) {
                true => self.again(name, Action::Return(name.clone()), Reason::GoesBack),
                false => Reason::GoesBack,
            },
            Step::Updated { .. } => self.back(name, Reason::RunsIt),
            Step::Failed { why, .. } => {
                let failed = Reason::Failed(why.clone());
                self.back(name, failed)
            }
            Step::Returned { .. } => Reason::WentBack,
            Step::Stuck { why } => Reason::Stuck(why.clone()),
            Step::Left { why } => Reason::Left(why.clone()),
        }
    }

    fn act(&mut self, action: Action) {
        self.ahead.intend(&action, self.facts, self.now);
        self.decision.actions.push(action);
    }

    /// Asks a machine again that shows no sign of what it was to do, if it may be asked still.
    fn again(&mut self, name: &MachineName, action: Action, reason: Reason) -> Reason {
        let Some(entry) = self.ahead.machines.get(name) else {
            return reason;
        };
        if let Some(why) = hold(name, entry, self.facts) {
            return Reason::Held(why);
        }
        if self.ahead.may_be_asked(name, entry, self.facts, self.now) {
            self.act(action);
        }
        reason
    }

    /// Whether a machine that was to change is as if nobody had asked it.
    fn shows_no_sign(&self, name: &MachineName, runs_target: bool) -> bool {
        let is_ready = |fact: &&crate::machine::Fact| fact.condition == Condition::Ready;
        let fact = self.facts.get(name).filter(is_ready);
        fact.is_some_and(|fact| fact.runs(&self.ahead.target) == runs_target)
    }

    /// A machine that has not begun.
    fn before(&mut self, name: &MachineName) -> Reason {
        if self.ahead.phase != Phase::Rolling {
            // One that failed, and was to try again, may have to go back.
            return self.back(name, Reason::Stopped);
        }
        let Some(candidate) = self.candidate(name) else {
            return Reason::Stopped;
        };
        if let Some(why) = &self.ahead.paused {
            return Reason::Paused(why.clone());
        }
        if let Some(held) = candidate.is_held() {
            return held;
        }
        let step = &candidate.entry.step;
        let is_first = |policy: &&crate::policy::Policy| {
            policy.prepare_first && policy.is_for(candidate.entry)
        };
        let must_prepare = self.ahead.policies.iter().any(|policy| is_first(&policy));
        if matches!(step, Step::Preparing { .. }) || must_prepare && *step == Step::Waiting {
            if let Some(unwell) = candidate.is_not_well() {
                return unwell;
            }
            self.act(Action::Prepare(name.clone()));
            return Reason::Fetches;
        }
        if let Some(obstacle) = candidate.obstacle() {
            return obstacle;
        }
        self.act(Action::Switch(name.clone()));
        Reason::Begins
    }

    /// A machine that may have to go back.
    fn back(&mut self, name: &MachineName, reason: Reason) -> Reason {
        let Some(candidate) = self.candidate(name) else {
            return reason;
        };
        let goes_back = matches!(self.ahead.phase, Phase::GoingBack { .. });
        if !goes_back || !self.ahead.has_to_go_back(name, candidate.entry, self.facts) {
            return reason;
        }
        if let Some(why) = &self.ahead.paused {
            return Reason::Paused(why.clone());
        }
        if let Some(full) = candidate.too_many_under_way() {
            return full;
        }
        // It may be unwell because of the version; only one that cannot be asked is not asked.
        if let Some(away @ (Reason::Away(_) | Reason::Busy)) = candidate.is_not_well() {
            return Reason::CannotBeAsked(away.to_string());
        }
        self.act(Action::Return(name.clone()));
        Reason::GoesBack
    }

    fn candidate<'b>(&'b self, name: &'b MachineName) -> Option<Candidate<'b>> {
        Some(Candidate {
            record: &self.ahead,
            waves: &self.waves,
            facts: self.facts,
            now: self.now,
            name,
            entry: self.ahead.machines.get(name)?,
        })
    }
}

#[cfg(test)]
mod tests;
