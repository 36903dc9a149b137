//! A state of the model: the record, and all that is made up beside it. Machines, people and drivers change it.

use std::collections::{BTreeMap, BTreeSet};

use instar_rollout::{
    Action, Approval, Command, Condition, Entry, Fact, Facts, MachineName, Member, Moment,
    NotedFailure, Phase, Policy, Reason, Record, Report, Step, broken, decide,
};

use crate::fleet::{Budgets, Fleet, is_open, release};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The drivers' clock, in seconds since 1970.
    pub(crate) now: u64,
    pub(crate) record: Record,
    pub(crate) drivers: [Driver; 2],
    /// The driver that has the lock, or the lease.
    pub(crate) holder: usize,
    pub(crate) machines: BTreeMap<MachineName, Machine>,
    pub(crate) budgets: Budgets,
    pub(crate) resumed: u8,
    /// How many waves a person has approved.
    pub(crate) approved: usize,
    /// A broken promise, noted when it happens.
    pub(crate) broken: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Driver {
    pub(crate) is_alive: bool,
    /// The record and the actions that it computed from the record of a revision, and has not saved.
    pub(crate) computed: Option<(u64, Record, Vec<Action>)>,
    /// Saved, and not sent.
    pub(crate) to_send: BTreeSet<Action>,
    /// Sent; it listens for the end.
    pub(crate) asked: BTreeSet<MachineName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    pub(crate) has_new: bool,
    pub(crate) is_off: bool,
    pub(crate) change: Option<Change>,
    pub(crate) history: u64,
    pub(crate) failed_at: Option<u64>,
    pub(crate) cordon: bool,
    pub(crate) is_gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    ToNew,
    Back,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Start(usize),
    Die(usize),
    Round(usize),
    Save(usize),
    Send(usize, Action),
    /// The driver finds, right before it would ask, that nobody may ask any more.
    NotAsked(usize, Action),
    Learn(usize, MachineName),
    Finish(MachineName, bool),
    Off(MachineName),
    /// The power is back; a machine in the middle of a change comes up with one of its versions.
    On(MachineName, bool),
    /// The machine is taken out of the fleet, for good.
    Remove(MachineName),
    Person(Command),
    Cordon(MachineName),
    /// A person takes an approval back, as with a smaller `approvedWaves` of a pool of the operator.
    Withdraw,
    /// A tick: what is under way is late, if it was asked before it.
    Tick,
    /// Half a day passes: the window opens or closes, a soak or the time of a rate is over.
    Turn,
}

pub(crate) fn name(number: u8) -> MachineName {
    MachineName::from(format!("m{number}"))
}

impl Machine {
    pub(crate) fn fact(&self) -> Fact {
        if self.is_gone {
            return Fact::gone("sold");
        }
        if self.is_off {
            return Fact::away("off");
        }
        Fact {
            condition: match self.change {
                Some(_) => Condition::Busy,
                None => Condition::Ready,
            },
            running: Some(release(if self.has_new { "v2" } else { "v1" })),
            history: self.history,
            failure: self.failed_at.map(|number| NotedFailure {
                number,
                why: "bad".to_owned(),
            }),
            hold: self.cordon.then(|| "cordoned".to_owned()),
        }
    }

    pub(crate) fn finish(&mut self, is_well: bool) {
        let Some(change) = self.change.take() else {
            return;
        };
        self.history += 1;
        match (change, is_well) {
            (Change::ToNew, true) => self.has_new = true,
            (Change::Back, true) => self.has_new = false,
            (_, false) => self.failed_at = Some(self.history),
        }
    }
}

impl State {
    /// The state in which a rollout begins.
    pub(crate) fn begin(fleet: &Fleet) -> Self {
        let names = (0..fleet.machines).map(name);
        let members = (0..fleet.machines).map(|number| {
            let member = Member {
                pool: fleet.pool(number),
                ..Member::default()
            };
            (name(number), member)
        });
        let policies = vec![fleet.policy.clone()];
        let record = Record::begin(release("v2"), policies, members.collect());
        State {
            now: 0,
            record: record.unwrap(),
            drivers: Default::default(),
            holder: 0,
            machines: names.map(|name| (name, Machine::default())).collect(),
            budgets: fleet.budgets,
            resumed: 0,
            approved: 0,
            broken: None,
        }
    }

    /// A person's command; `None` if the record refuses it.
    pub(crate) fn command(&mut self, command: Command) -> Option<()> {
        match command {
            Command::Resume if self.record.paused.is_none() => {
                self.budgets.resumes -= 1;
                self.resumed += 1;
            }
            Command::Retry => {
                self.budgets.retries -= 1;
                self.resumed += 1;
            }
            Command::Approve(_) => self.approved += 1,
            Command::Resume | Command::Release(_) => {}
            _ => self.budgets.commands -= 1,
        }
        self.record.command(command).ok()
    }

    pub(crate) fn facts(&self) -> Facts {
        let machines = self.machines.iter();
        machines
            .map(|(name, machine)| (name.clone(), machine.fact()))
            .collect()
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(self.now)
    }

    /// Computes a driver's round; none if it would change nothing.
    pub(crate) fn computed(&self, driver: usize) -> Option<(Record, Vec<Action>)> {
        let facts = self.facts();
        let mut record = self.record.clone();
        let decision = record.go_on(&facts, &self.drivers[driver].asked, self.now());
        let is_idle = record == self.record && decision.actions.is_empty();
        (!is_idle).then_some((record, decision.actions))
    }

    pub(crate) fn save(&mut self, driver: usize, record: Record, actions: Vec<Action>) {
        self.record = record;
        self.drivers[driver].to_send = actions.into_iter().collect();
    }

    /// Checks a round against the facts that it was computed from.
    pub(crate) fn check_promises(&mut self, after: &Record, actions: &[Action]) {
        self.broken = self
            .broken
            .or_else(|| self.begins_wrongly(after, actions))
            .or_else(|| self.begins_too_early(after))
            .or_else(|| broken(&self.record, after, &self.facts(), actions, self.now()));
    }

    /// The promise that the machines break that a round has begin, or asks again, by what the model itself knows of hours and approvals.
    fn begins_wrongly(&self, after: &Record, actions: &[Action]) -> Option<&'static str> {
        let is_to_change = |record: &Record, name: &MachineName| {
            matches!(record.machines[name].step, Step::Switching { .. })
        };
        let begins = |name: &&MachineName| {
            let is_asked = actions.contains(&Action::Switch((*name).clone()));
            is_asked || is_to_change(after, name) && !is_to_change(&self.record, name)
        };
        let mut beginning = self.machines.keys().filter(begins).peekable();
        if beginning.peek().is_some() && !self.is_open() {
            return Some("a machine begins, or is asked again, outside of the window");
        }
        let needs_approval = self.policy().approval == Approval::Waves;
        // The first machine is the canary.
        let wave = |name: &MachineName| usize::from(self.machines.keys().next() != Some(name));
        (needs_approval && beginning.any(|name| wave(name) >= self.approved))
            .then_some("a machine begins without the approval that it needs")
    }

    /// The promise that a machine breaks that a round has begin, by what the model itself knows of rates, soaks and the order of pools.
    fn begins_too_early(&self, after: &Record) -> Option<&'static str> {
        let is_to_change = |record: &Record, name: &MachineName| {
            matches!(record.machines[name].step, Step::Switching { .. })
        };
        let begins =
            |name: &&MachineName| is_to_change(after, name) && !is_to_change(&self.record, name);
        let mut beginning = self.machines.keys().filter(begins);
        beginning.find_map(|name| {
            if self.is_too_fast(after) {
                Some("more machines begin in a time than may")
            } else if self.is_before_the_soak(name, after) {
                Some("a machine begins before the canary has run for its soak, or while it is away")
            } else if self.is_before_its_pool(name, after) {
                Some("a machine begins before the pool ahead of its own is done")
            } else {
                None
            }
        })
    }

    fn is_too_fast(&self, after: &Record) -> bool {
        let Some(rate) = self.policy().rate else {
            return false;
        };
        let began = after.machines.values().filter_map(|entry| entry.began);
        let recent = began.filter(|began| self.now < began.0 + rate.per.0);
        recent.count() > rate.machines.get() as usize
    }

    /// Whether a machine after the canary, which is the first one, would begin before the time of the canary is over.
    fn is_before_the_soak(&self, name: &MachineName, after: &Record) -> bool {
        let canary = self.machines.keys().next().unwrap();
        let (entry, machine) = (&after.machines[canary], &self.machines[canary]);
        let Some(wave) = self.policy().waves.first() else {
            return false;
        };
        let Step::Updated { at } = entry.step else {
            return false;
        };
        let is_well = !machine.is_off && machine.change.is_none();
        let has_soaked = is_well && self.now >= at.0 + wave.soak.0;
        name != canary && !has_soaked && !self.is_left_alone(canary, after)
    }

    fn is_before_its_pool(&self, name: &MachineName, after: &Record) -> bool {
        let own = &after.machines[name].pool;
        let mut orders = self.policy().order.iter();
        let Some(order) = orders.find(|order| order.pool == *own) else {
            return false;
        };
        let ahead = after.machines.iter();
        let ahead = ahead.filter(|(_, entry)| order.after.contains(&entry.pool));
        let is_awaited = |(other, entry): (&MachineName, &Entry)| {
            let has_not_begun = matches!(
                entry.step,
                Step::Waiting | Step::Preparing { .. } | Step::Prepared
            );
            has_not_begun && !self.is_left_alone(other, after) || entry.step.is_under_way()
        };
        let mut steps = ahead.clone().map(|(_, entry)| &entry.step);
        let is_proven = steps
            .clone()
            .any(|step| matches!(step, Step::Updated { .. }));
        let has_failed = steps.any(|step| matches!(step, Step::Failed { .. }));
        let is_unproven = has_failed && !is_proven && self.resumed == 0;
        is_unproven || ahead.clone().any(is_awaited)
    }

    fn is_left_alone(&self, name: &MachineName, record: &Record) -> bool {
        let machine = &self.machines[name];
        record.machines[name].hold.is_some() || machine.cordon || machine.is_gone
    }

    /// The policy, which is for all machines.
    pub(crate) fn policy(&self) -> &Policy {
        &self.record.policies[0]
    }

    /// Whether the window is open.
    pub(crate) fn is_open(&self) -> bool {
        is_open(self.policy(), self.now())
    }

    pub(crate) fn send(&mut self, driver: usize, action: &Action) {
        self.drivers[driver].to_send.remove(action);
        let name = action.machine();
        let machine = self.machines.get_mut(name).unwrap();
        if machine.is_off || machine.is_gone {
            return;
        }
        self.drivers[driver].asked.insert(name.clone());
        // A busy machine refuses.
        if machine.change.is_none() {
            machine.change = match action {
                Action::Prepare(_) => None,
                Action::Switch(_) => Some(Change::ToNew),
                Action::Return(_) => Some(Change::Back),
            };
        }
    }

    /// Whether a driver that looks again before it asks finds that it may not.
    pub(crate) fn is_unwanted(&self, action: &Action) -> bool {
        let name = action.machine();
        let (entry, machine) = (&self.record.machines[name], &self.machines[name]);
        let is_held = entry.hold.is_some() || machine.cordon || machine.is_gone;
        let is_stopped = self.record.phase != Phase::Rolling || self.record.paused.is_some();
        match action {
            Action::Prepare(_) => false,
            Action::Switch(_) => is_held || is_stopped,
            Action::Return(_) => is_held,
        }
    }

    /// The driver hears how a change ended that it has asked for.
    pub(crate) fn learn(&mut self, driver: usize, name: &MachineName) {
        self.drivers[driver].asked.remove(name);
        let machine = &self.machines[name];
        let (action, is_done) = match &self.record.machines[name].step {
            Step::Preparing { .. } => (Action::Prepare(name.clone()), true),
            Step::Returning { .. } => (Action::Return(name.clone()), !machine.has_new),
            _ => (Action::Switch(name.clone()), machine.has_new),
        };
        let report = match is_done {
            true => Report::Done,
            false => Report::Failed("bad".to_owned()),
        };
        let now = self.now();
        self.record.report(&action, report, now);
    }

    /// Machines that change by the rollout's hand, without those that it has given up.
    pub(crate) fn changing(&self) -> usize {
        let changes = |(name, machine): &(&MachineName, &Machine)| {
            machine.change.is_some() && self.record.machines[*name].step.is_under_way()
        };
        self.machines.iter().filter(changes).count()
    }

    /// Whether a machine waits for such a reason.
    pub(crate) fn waits_for(&self, is_meant: impl Fn(&Reason) -> bool) -> bool {
        let decision = decide(&self.record, &self.facts(), self.now());
        decision.reasons.values().any(is_meant)
    }

    /// Whether a machine waits for a window, a soak, or the time of a rate.
    pub(crate) fn waits_for_half_a_day(&self) -> bool {
        !self.is_open()
            || self.waits_for(|reason| matches!(reason, Reason::Rate(_) | Reason::Soaks(_)))
    }

    /// Whether a person may approve a wave. Two are all that there are.
    pub(crate) fn may_be_approved(&self) -> bool {
        let goes_on = matches!(self.record.phase, Phase::Rolling | Phase::Halted { .. });
        goes_on && self.policy().approval == Approval::Waves && self.approved < 2
    }

    pub(crate) fn persons(&self, events: &mut Vec<Event>) {
        let is_open = !self.record.has_ended();
        if self.record.paused.is_some() && is_open {
            events.push(Event::Person(Command::Resume));
        }
        if matches!(self.record.phase, Phase::Halted { .. }) && self.budgets.resumes > 0 {
            events.push(Event::Person(Command::Resume));
        }
        let has_stopped = matches!(self.record.phase, Phase::Halted { .. } | Phase::Done);
        if has_stopped && self.record.failures() > 0 && self.budgets.retries > 0 {
            events.push(Event::Person(Command::Retry));
        }
        if self.may_be_approved() {
            events.push(Event::Person(Command::Approve(None)));
        }
        let first = self.machines.keys().next().unwrap().clone();
        // Somebody notices some day that nothing goes on because all of a wave are held.
        if self.record.machines[&first].hold.is_some()
            && self.waits_for(|reason| matches!(reason, Reason::Unproven(_)))
        {
            events.push(Event::Person(Command::Release(first.clone())));
        }
        if self.budgets.commands == 0 || !is_open {
            return;
        }
        if self.approved > 0 && self.record.phase == Phase::Rolling {
            events.push(Event::Withdraw);
        }
        let why = || "a person".to_owned();
        events.push(Event::Person(Command::Pause(why())));
        events.push(Event::Person(Command::Abort));
        events.push(Event::Person(Command::Rollback(why())));
        events.push(Event::Person(Command::Hold(first.clone(), why())));
        events.push(Event::Cordon(
            self.machines.keys().next_back().unwrap().clone(),
        ));
    }

    pub(crate) fn machines(&self, events: &mut Vec<Event>) {
        let first = self.machines.iter().next().unwrap();
        if self.budgets.removals > 0 && !first.1.is_gone {
            events.push(Event::Remove(first.0.clone()));
        }
        for (name, machine) in &self.machines {
            if machine.is_gone {
                continue;
            }
            match (machine.is_off, machine.change) {
                (true, None) => events.push(Event::On(name.clone(), machine.has_new)),
                (true, Some(_)) => {
                    events.extend([true, false].map(|new| Event::On(name.clone(), new)));
                }
                (false, Some(_)) => {
                    events.push(Event::Finish(name.clone(), true));
                    if self.budgets.failures > 0 {
                        events.push(Event::Finish(name.clone(), false));
                    }
                }
                (false, None) => {}
            }
            if !machine.is_off && self.budgets.outages > 0 {
                events.push(Event::Off(name.clone()));
            }
        }
    }

    pub(crate) fn drivers(&self, lease: bool, budgets: &Budgets, events: &mut Vec<Event>) {
        let alive = self.drivers.iter().filter(|driver| driver.is_alive).count();
        for (number, driver) in self.drivers.iter().enumerate() {
            if !driver.is_alive {
                // The lock is free; or the lease has run out while the other one computes.
                let other = &self.drivers[1 - number];
                let is_late = other.computed.is_some() && self.holder != number;
                let overtakes = lease && is_late && budgets.deaths > 0;
                if (alive == 0 && number == 0) || overtakes {
                    events.push(Event::Start(number));
                }
                continue;
            }
            if budgets.deaths > 0 {
                events.push(Event::Die(number));
            }
            for action in &driver.to_send {
                events.push(Event::Send(number, action.clone()));
                if self.is_unwanted(action) {
                    events.push(Event::NotAsked(number, action.clone()));
                }
            }
            for name in &driver.asked {
                let machine = &self.machines[name];
                if machine.change.is_none() && !machine.is_off && !machine.is_gone {
                    events.push(Event::Learn(number, name.clone()));
                }
            }
            if driver.computed.is_some() {
                events.push(Event::Save(number));
            } else if driver.to_send.is_empty() && self.computed(number).is_some() {
                events.push(Event::Round(number));
            }
        }
    }

    /// What befalls a machine.
    pub(crate) fn befall(&mut self, event: &Event) -> Option<()> {
        match event {
            Event::Finish(name, is_well) => {
                self.budgets.failures -= u8::from(!is_well);
                self.machines.get_mut(name)?.finish(*is_well);
            }
            Event::Off(name) => {
                self.budgets.outages -= 1;
                self.machines.get_mut(name)?.is_off = true;
            }
            Event::On(name, has_new) => {
                let machine = self.machines.get_mut(name)?;
                (machine.is_off, machine.change, machine.has_new) = (false, None, *has_new);
            }
            Event::Remove(name) => {
                self.budgets.removals -= 1;
                let machine = self.machines.get_mut(name)?;
                (machine.is_gone, machine.is_off, machine.change) = (true, false, None);
            }
            Event::Cordon(name) => {
                self.budgets.commands -= 1;
                self.machines.get_mut(name)?.cordon = true;
            }
            _ => {}
        }
        Some(())
    }
}
