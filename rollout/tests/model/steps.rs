//! The steps of the model: which events may come next, and what each of them changes.

use instar_rollout::Report;
use stateright::{Model, Property};

use crate::fleet::{Fleet, HALF_DAY, TICK, has_half_days};
use crate::promises::properties;
use crate::state::{Driver, Event, State};

/// The number of ticks that pass by themselves, at most.
const TICKS: u64 = 20;

impl Model for Fleet {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State::begin(self)]
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
                    | Event::Withdraw
            )
        });
        // A person who has paused it resumes it some day, and approves what waits for it; nothing waits for more time meanwhile.
        let is_quiet = is_quiet && state.record.paused.is_none() && !state.may_be_approved();
        if state.record.has_ended() {
            return;
        }
        let has_half_days = has_half_days(state.policy());
        let comes_some_day = has_half_days && is_quiet && state.waits_for_half_a_day();
        if has_half_days && (state.budgets.turns > 0 || comes_some_day) {
            events.push(Event::Turn);
        }
        let passes = is_quiet && !comes_some_day && state.now < TICKS * TICK;
        if state.budgets.ticks > 0 || passes {
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
            Event::Finish(..)
            | Event::Off(_)
            | Event::On(..)
            | Event::Remove(_)
            | Event::Cordon(_) => state.befall(&event)?,
            Event::Person(command) => state.command(command)?,
            Event::Withdraw => {
                state.budgets.commands -= 1;
                state.approved -= 1;
                state.record.approved -= 1;
                state.record.revision += 1;
            }
            Event::Tick => {
                state.now += TICK;
                state.budgets.ticks = state.budgets.ticks.saturating_sub(1);
            }
            Event::Turn => {
                state.now += HALF_DAY;
                state.budgets.turns = state.budgets.turns.saturating_sub(1);
            }
        }
        // The revision counts only where somebody has read it.
        if state.drivers.iter().all(|driver| driver.computed.is_none()) {
            state.record.revision = 0;
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties(self)
    }
}
