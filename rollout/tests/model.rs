//! The engine, explored whole within bounds: every order in which drivers, machines and people may act.
//!
//! The drivers of the model run the crate's own functions on the crate's own [`Record`]; only machines, people and the time are made up.
//! A driver may die between any two steps, and another one goes on from the record. Where a lease decides who drives, a driver may also be
//! overtaken while it computes: it may save only over the revision that it has read.
//!
//! ```text
//!  driver   (Read ─►) Round: observe, decide, intend, save ─► Send ... Send     Learn     Die, Start, Overtake
//!                                                          └► NotAsked: a pause, a stop or a hold came in between
//!  machine  Up ─ Send ─► Changing ─ Finish (well | failed) ─► Up        Off ◄─► On        Remove
//!  person   Pause, Resume, Retry, Abort, RollBack, Hold, Release, Cordon
//!  time     Tick
//! ```
//!
//! Every action but those of the drivers has a budget, and a driver's round that changes nothing is no action, so the graph has no
//! circles, which is checked as well. So "everything ends" can say that a state in which nothing more can happen is an end.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::time::Instant;

use instar_rollout::{
    Action, Command, Condition, Fact, Facts, MachineName, Member, Moment, NotedFailure, OnFailure,
    Phase, Policy, Reason, Record, Release, Report, Seconds, Select, Step, Wave, broken, decide,
};
use stateright::{Checker, Model, Property};

/// The patience of the policies, in ticks.
const PATIENCE: u64 = 1;

/// The bounds of one exploration.
#[derive(Clone)]
struct Fleet {
    machines: u8,
    policy: Policy,
    /// Whether drivers read and save in two steps, and may overtake each other.
    lease: bool,
    budgets: Budgets,
}

/// How many times something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budgets {
    deaths: u8,
    outages: u8,
    failures: u8,
    ticks: u8,
    /// Commands of people: pause, abort, roll back, hold, cordon.
    commands: u8,
    /// How many times a person resumes a halted rollout.
    resumes: u8,
    /// How many times a person has machines that failed try again.
    retries: u8,
    /// How many machines are taken out of the fleet.
    removals: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    record: Record,
    drivers: [Driver; 2],
    /// The driver that has the lock, or the lease.
    holder: usize,
    machines: BTreeMap<MachineName, Machine>,
    budgets: Budgets,
    resumed: u8,
    /// A broken promise, noted when it happens.
    broken: Option<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Driver {
    is_alive: bool,
    /// The record and the actions that it computed from the record of a revision, and has not saved.
    computed: Option<(u64, Record, Vec<Action>)>,
    /// Saved, and not sent.
    to_send: BTreeSet<Action>,
    /// Sent; it listens for the end.
    asked: BTreeSet<MachineName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Machine {
    has_new: bool,
    is_off: bool,
    change: Option<Change>,
    history: u64,
    failed_at: Option<u64>,
    cordon: bool,
    is_gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    ToNew,
    Back,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
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
    Tick,
}

fn release(version: &str) -> Release {
    Release {
        version: version.to_owned(),
        digest: None,
        image: None,
    }
}

fn name(number: u8) -> MachineName {
    MachineName::from(format!("m{number}"))
}

impl Machine {
    fn fact(&self) -> Fact {
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

    fn finish(&mut self, is_well: bool) {
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
    /// A person's command; `None` if the record refuses it.
    fn command(&mut self, command: Command) -> Option<()> {
        match command {
            Command::Resume if self.record.paused.is_none() => {
                self.budgets.resumes -= 1;
                self.resumed += 1;
            }
            Command::Retry => {
                self.budgets.retries -= 1;
                self.resumed += 1;
            }
            Command::Resume | Command::Release(_) => {}
            _ => self.budgets.commands -= 1,
        }
        self.record.command(command).ok()
    }

    fn facts(&self) -> Facts {
        let machines = self.machines.iter();
        machines
            .map(|(name, machine)| (name.clone(), machine.fact()))
            .collect()
    }

    fn now(&self) -> Moment {
        Moment(self.now)
    }

    /// Computes a driver's round; none if it would change nothing.
    fn computed(&self, driver: usize) -> Option<(Record, Vec<Action>)> {
        let facts = self.facts();
        let mut record = self.record.clone();
        let decision = record.go_on(&facts, &self.drivers[driver].asked, self.now());
        let is_idle = record == self.record && decision.actions.is_empty();
        (!is_idle).then_some((record, decision.actions))
    }

    fn save(&mut self, driver: usize, record: Record, actions: Vec<Action>) {
        self.record = record;
        self.drivers[driver].to_send = actions.into_iter().collect();
    }

    /// Checks a round against the facts that it was computed from.
    fn check_promises(&mut self, after: &Record, actions: &[Action]) {
        self.broken = self
            .broken
            .or_else(|| broken(&self.record, after, &self.facts(), actions));
    }

    fn send(&mut self, driver: usize, action: &Action) {
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
    fn is_unwanted(&self, action: &Action) -> bool {
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
    fn learn(&mut self, driver: usize, name: &MachineName) {
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
    fn changing(&self) -> usize {
        let changes = |(name, machine): &(&MachineName, &Machine)| {
            machine.change.is_some() && self.record.machines[*name].step.is_under_way()
        };
        self.machines.iter().filter(changes).count()
    }

    fn waits_for_a_proof(&self) -> bool {
        let decision = decide(&self.record, &self.facts(), self.now());
        let mut reasons = decision.reasons.values();
        reasons.any(|reason| matches!(reason, Reason::Unproven(_)))
    }

    fn persons(&self, events: &mut Vec<Event>) {
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
        let first = self.machines.keys().next().unwrap().clone();
        // Somebody notices some day that nothing goes on because all of a wave are held.
        if self.record.machines[&first].hold.is_some() && self.waits_for_a_proof() {
            events.push(Event::Person(Command::Release(first.clone())));
        }
        if self.budgets.commands == 0 || !is_open {
            return;
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

    fn machines(&self, events: &mut Vec<Event>) {
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

    fn drivers(&self, lease: bool, budgets: &Budgets, events: &mut Vec<Event>) {
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
}

impl Model for Fleet {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let members = (0..self.machines).map(|number| (name(number), Member::default()));
        let record = Record::begin(release("v2"), vec![self.policy.clone()], members.collect());
        vec![State {
            now: 0,
            record: record.unwrap(),
            drivers: Default::default(),
            holder: 0,
            machines: (0..self.machines)
                .map(|number| (name(number), Machine::default()))
                .collect(),
            budgets: self.budgets,
            resumed: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        state.drivers(self.lease, &state.budgets, events);
        state.machines(events);
        state.persons(events);
        // Time passes by itself where nothing else can happen; elsewhere at most as often as the budget says.
        let is_quiet = events.iter().all(|event| {
            matches!(
                event,
                Event::On(..)
                    | Event::Off(_)
                    | Event::Remove(_)
                    | Event::Die(_)
                    | Event::Person(_)
                    | Event::Cordon(_)
            )
        });
        // A person who has paused it resumes it some day, and nothing waits for more time meanwhile.
        let is_quiet = is_quiet && state.record.paused.is_none();
        let is_open = !state.record.has_ended();
        if is_open && (state.budgets.ticks > 0 || is_quiet && state.now < 20) {
            events.push(Event::Tick);
        }
    }

    fn next_state(&self, last: &State, event: Event) -> Option<State> {
        let mut state = last.clone();
        match event {
            Event::Start(driver) => {
                if state.drivers[1 - driver].is_alive {
                    state.budgets.deaths -= 1;
                }
                state.holder = driver;
                state.drivers[driver].is_alive = true;
            }
            Event::Die(driver) => {
                state.budgets.deaths -= 1;
                state.drivers[driver] = Driver::default();
            }
            Event::Round(driver) => {
                let (record, actions) = state.computed(driver)?;
                state.check_promises(&record, &actions);
                if self.lease {
                    state.drivers[driver].computed = Some((state.record.revision, record, actions));
                } else {
                    state.save(driver, record, actions);
                }
            }
            Event::Save(driver) => {
                let (revision, record, actions) = state.drivers[driver].computed.take()?;
                if revision == state.record.revision {
                    state.save(driver, record, actions);
                }
                // Overtaken: it looks at its lease before it sends anything.
                if state.holder != driver {
                    state.drivers[driver] = Driver::default();
                }
            }
            Event::Send(driver, action) => state.send(driver, &action),
            Event::NotAsked(driver, action) => {
                state.drivers[driver].to_send.remove(&action);
                let now = state.now();
                state.record.report(&action, Report::NotAsked, now);
            }
            Event::Learn(driver, name) => state.learn(driver, &name),
            Event::Finish(name, is_well) => {
                if !is_well {
                    state.budgets.failures -= 1;
                }
                state.machines.get_mut(&name)?.finish(is_well);
            }
            Event::Off(name) => {
                state.budgets.outages -= 1;
                state.machines.get_mut(&name)?.is_off = true;
            }
            Event::On(name, has_new) => {
                let machine = state.machines.get_mut(&name)?;
                (machine.is_off, machine.change, machine.has_new) = (false, None, has_new);
            }
            Event::Remove(name) => {
                state.budgets.removals -= 1;
                let machine = state.machines.get_mut(&name)?;
                (machine.is_gone, machine.is_off, machine.change) = (true, false, None);
            }
            Event::Person(command) => state.command(command)?,
            Event::Cordon(name) => {
                state.budgets.commands -= 1;
                state.machines.get_mut(&name)?.cordon = true;
            }
            Event::Tick => {
                state.now += 1;
                state.budgets.ticks = state.budgets.ticks.saturating_sub(1);
            }
        }
        // The revision counts only where somebody has read it.
        if state.drivers.iter().all(|driver| driver.computed.is_none()) {
            state.record.revision = 0;
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no promise is broken", |_, state: &State| {
                state.broken.is_none()
            }),
            Property::always(
                "the limit is never exceeded",
                |model: &Fleet, state: &State| {
                    let most = model
                        .policy
                        .at_once
                        .map_or(usize::MAX, |most| most.get() as usize);
                    let entries = state.record.machines.values();
                    let under_way = entries.filter(|entry| entry.step.is_under_way()).count();
                    state.changing() <= most && under_way <= most
                },
            ),
            Property::always("who changes is in the record", |_, state: &State| {
                let mut machines = state.machines.iter();
                machines.all(|(name, machine)| {
                    machine.change.is_none() || state.record.machines[name].began.is_some()
                })
            }),
            Property::always("a failure stays alone", |model: &Fleet, state: &State| {
                let most = model
                    .policy
                    .at_once
                    .map_or(usize::MAX, |most| most.get() as usize);
                let failed = |machine: &&Machine| machine.failed_at.is_some();
                let failures = state.machines.values().filter(failed).count();
                failures <= most * (1 + usize::from(state.resumed))
            }),
            Property::always("everything ends", |model: &Fleet, state: &State| {
                let mut events = Vec::new();
                model.actions(state, &mut events);
                !events.is_empty() || state.record.has_ended()
            }),
            Property::always("who went back runs the old version", |_, state: &State| {
                let is_back = matches!(state.record.phase, Phase::WentBack { .. });
                !is_back
                    || state.machines.iter().all(|(name, machine)| {
                        let entry = &state.record.machines[name];
                        let is_left = machine.cordon
                            || entry.hold.is_some()
                            || machine.is_off
                            || machine.is_gone;
                        let is_updated = matches!(entry.step, Step::Updated { .. });
                        is_left || !is_updated
                    })
            }),
            Property::sometimes("a rollout is done", |_, state: &State| {
                state.record.phase == Phase::Done
            }),
            Property::sometimes("a rollout is aborted", |_, state: &State| {
                state.record.phase == Phase::Aborted
            }),
            Property::sometimes("a rollout goes back", |_, state: &State| {
                let returned =
                    |entry: &instar_rollout::Entry| matches!(entry.step, Step::Returned { .. });
                state.record.machines.values().any(returned)
            }),
        ]
    }
}

fn policy(at_once: u32, on_failure: OnFailure) -> Policy {
    Policy {
        at_once: NonZeroU32::new(at_once),
        on_failure,
        patience: Seconds(PATIENCE),
        ..Policy::default()
    }
}

const BUDGETS: Budgets = Budgets {
    deaths: 1,
    outages: 1,
    failures: 1,
    ticks: 1,
    commands: 1,
    resumes: 1,
    retries: 0,
    removals: 0,
};

/// Fails if some steps lead back to where they began: then "nothing more can happen" would not be the only way never to end. Returns the
/// number of states.
fn assert_no_circle(fleet: &Fleet) -> usize {
    let print = |state: &State| {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    let first = fleet.init_states().remove(0);
    // Whether a state that was seen is on the path to the present one.
    let mut on_path = HashMap::from([(print(&first), true)]);
    let mut path = vec![(print(&first), fleet.next_states(&first))];
    while let Some((at, left)) = path.last_mut() {
        let Some(next) = left.pop() else {
            on_path.insert(*at, false);
            path.pop();
            continue;
        };
        let at = print(&next);
        match on_path.get(&at) {
            Some(true) => panic!("a circle through {next:#?}"),
            Some(false) => {}
            None => {
                on_path.insert(at, true);
                path.push((at, fleet.next_states(&next)));
            }
        }
    }
    on_path.len()
}

fn explore(what: &str, fleet: Fleet) {
    let began = Instant::now();
    let states = assert_no_circle(&fleet);
    let (machines, budgets) = (fleet.machines, fleet.budgets);
    let checker = fleet.checker().threads(2).spawn_bfs().join();
    println!(
        "{what}: {} states, {machines} machines, {budgets:?}, {:.1} s",
        checker.unique_state_count(),
        began.elapsed().as_secs_f64()
    );
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states, "explored whole");
}

/// A canary, then one machine after the other; a failure sends all back.
#[test]
fn one_at_a_time_and_the_way_back() {
    let canary = Wave {
        select: Select::Count(NonZeroU32::MIN),
        soak: Seconds(0),
    };
    explore(
        "canary, one at a time, all go back",
        Fleet {
            machines: 2,
            policy: Policy {
                waves: vec![canary],
                ..policy(1, OnFailure::Rollback)
            },
            lease: false,
            budgets: BUDGETS,
        },
    );
}

/// The same with a machine more, and without the time.
#[test]
fn three_one_at_a_time() {
    explore(
        "one at a time of three, all go back",
        Fleet {
            machines: 3,
            policy: policy(1, OnFailure::Rollback),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                ..BUDGETS
            },
        },
    );
}

/// Two of three at once; a failure stops the rollout, and a person may resume it.
#[test]
fn two_at_once_and_a_halt() {
    explore(
        "two of three at once, halt",
        Fleet {
            machines: 3,
            policy: policy(2, OnFailure::Halt),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                failures: 2,
                ..BUDGETS
            },
        },
    );
}

/// The same with two machines, where a person has those that failed try again; one of them may only have been late.
#[test]
fn who_failed_tries_again() {
    explore(
        "two at once, who failed tries again",
        Fleet {
            machines: 2,
            policy: policy(2, OnFailure::Halt),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                resumes: 0,
                retries: 1,
                ..BUDGETS
            },
        },
    );
}

/// Two failures are allowed, and yet a canary that fails, or is taken out of the fleet, lets no other begin before a person says so.
#[test]
fn a_canary_that_fails_is_no_proof() {
    let canary = Wave {
        select: Select::Count(NonZeroU32::MIN),
        soak: Seconds(0),
    };
    explore(
        "canary, two failures, halt",
        Fleet {
            machines: 2,
            policy: Policy {
                waves: vec![canary],
                max_failures: NonZeroU32::new(2).unwrap(),
                ..policy(1, OnFailure::Halt)
            },
            lease: false,
            budgets: Budgets {
                outages: 0,
                ticks: 0,
                removals: 1,
                ..BUDGETS
            },
        },
    );
}

/// All have the image before the first one begins.
#[test]
fn all_are_prepared_first() {
    explore(
        "all prepared first",
        Fleet {
            machines: 2,
            policy: Policy {
                prepare_first: true,
                ..policy(1, OnFailure::Halt)
            },
            lease: false,
            budgets: Budgets {
                deaths: 2,
                ticks: 0,
                ..BUDGETS
            },
        },
    );
}

/// Two drivers with a lease, of which one overtakes the other while it computes.
#[test]
fn leaders_change() {
    explore(
        "two drivers with a lease",
        Fleet {
            machines: 2,
            policy: policy(1, OnFailure::Rollback),
            lease: true,
            budgets: Budgets {
                ticks: 0,
                outages: 0,
                deaths: 2,
                resumes: 0,
                ..BUDGETS
            },
        },
    );
}
