//! One machine, explored whole within bounds: upgrades of both kinds to versions that work and that do not, under power cuts and crashes of
//! machined at every step.
//!
//! The machine of the model asks the product's own functions, on the product's own types: `upgrade::trial` decides, `instar_esp` plans each
//! change of the boot entries and says which one the loader takes. Made up are the disk, which forgets what was not flushed, the loader's
//! counting, init's way back, and the order of the steps, which is that of `sequences/upgrade.rs` and `sequences/boot.rs`.
//!
//! ```text
//!  machine  Step: the next write, flush or decision of what it does        person   Upgrade(version, way), Configure
//!  world    Cut(what was not flushed is lost, or is not), On, Crash
//! ```
//!
//! Everything but a step has a budget, so the graph has no circles, and "everything ends" can say that a state in which nothing more can
//! happen is a machine that works.

#![allow(clippy::unwrap_used, clippy::panic)]

mod disk;
mod machine;

use std::io::{self, Cursor, Read};
use std::time::Duration;

use instar_esp::{Asset, FileDigest, NewSystem, NewVersion, perform};
use stateright::{Checker, Model, Property};

use disk::{CONFIG, Disk, Write, replace, uki, version};
use machine::{Budgets, Mistake, Power, Quality, Start, State, Todo, Way, with};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    Step,
    Upgrade(Quality, Way),
    Configure,
    Cut { is_lost: bool },
    On,
    Crash,
}

/// The bounds of one exploration.
#[derive(Clone, Copy)]
struct Machine {
    bounds: Budgets,
    mistake: Option<Mistake>,
}

impl Machine {
    fn installed(self) -> State {
        let first = NewSystem {
            version: NewVersion {
                version: version(1).parse().unwrap(),
                uki: FileDigest::of(&uki(1)),
            },
            loader: FileDigest::of(b"loader"),
            keys: Vec::new(),
            enrol_everywhere: false,
        };
        let mut disk = Disk::default();
        let plan = instar_esp::install(&disk.esp(), &first).unwrap();
        let asset = |asset| -> io::Result<Box<dyn Read>> {
            Ok(match asset {
                Asset::Uki => Box::new(Cursor::new(uki(1))),
                Asset::Loader => Box::new(Cursor::new(b"loader")),
            })
        };
        perform(&plan, &mut disk, asset).unwrap();
        disk.seen.insert(CONFIG.to_owned(), vec![0]);
        State {
            disk: disk.after_a_cut(false),
            power: Power::Off,
            versions: vec![Quality::Good],
            left: self.bounds,
            config: 0,
            mistake: self.mistake,
            broken: None,
        }
    }

    fn events(self, state: &State) -> Vec<Event> {
        let mut events = Vec::new();
        let left = state.left;
        match &state.power {
            Power::Off => return vec![Event::On],
            // The watchdog costs no budget: tries do.
            Power::Hangs => return vec![Event::Cut { is_lost: true }],
            Power::On(generation) if generation.todo.is_empty() => {
                if left.upgrades > 0 {
                    for quality in [Quality::Good, Quality::Bad, Quality::Dead] {
                        events.extend(
                            [Way::Soft, Way::Reboot].map(|way| Event::Upgrade(quality, way)),
                        );
                    }
                }
                if left.configs > 0 {
                    events.push(Event::Configure);
                }
            }
            Power::On(_) => events.push(Event::Step),
        }
        if left.cuts > 0 {
            events.extend([true, false].map(|is_lost| Event::Cut { is_lost }));
        }
        if left.crashes > 0 {
            events.push(Event::Crash);
        }
        events
    }
}

impl Model for Machine {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![self.installed()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Event>) {
        actions.extend(self.events(state));
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step => next.step(),
            Event::On => next.power_on(),
            Event::Upgrade(quality, way) => {
                next.left.upgrades -= 1;
                next.upgrade(quality, way);
            }
            Event::Configure => {
                next.left.configs -= 1;
                let config = next.config + 1;
                let writes = match self.mistake {
                    Some(Mistake::ConfigInPlace) => vec![
                        Write::Create(CONFIG.to_owned(), vec![]),
                        Write::SyncFile(CONFIG.to_owned()),
                        Write::Create(CONFIG.to_owned(), vec![config]),
                        Write::SyncFile(CONFIG.to_owned()),
                    ],
                    _ => replace(CONFIG, vec![config]),
                };
                if let Power::On(generation) = &mut next.power {
                    let writes = with(self.mistake, writes).into_iter();
                    generation.todo = writes.chain([Todo::Acknowledge(config)]).collect();
                }
            }
            Event::Cut { is_lost } => {
                if next.power != Power::Hangs {
                    next.left.cuts -= 1;
                }
                next.disk = next.disk.after_a_cut(is_lost);
                next.power = Power::Off;
            }
            Event::Crash => {
                next.left.crashes -= 1;
                if let Power::On(generation) = &mut next.power {
                    generation.start = Start::Restart;
                }
                next.begin();
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOOTS, |_, state: &State| {
                [true, false]
                    .iter()
                    .all(|lost| state.can_boot(*lost).is_none())
            }),
            Property::always(NONE_UNHEALTHY, |_, state: &State| state.broken.is_none()),
            Property::always(CONFIG_STAYS, |_, state: &State| {
                [true, false].iter().all(|lost| state.has_config(*lost))
            }),
            Property::always(ENDS, |_, state: &State| {
                let Power::On(generation) = &state.power else {
                    return true;
                };
                !state.is_at_rest()
                    || generation.is_kept && state.quality(generation.version) == Quality::Good
            }),
            Property::sometimes(LAST_IS_KEPT, |machine: &Self, state: &State| {
                let Power::On(generation) = &state.power else {
                    return false;
                };
                generation.is_kept && generation.version == 1 + machine.bounds.upgrades
            }),
        ]
    }
}

const BOOTS: &str = "a version that boots always exists";
const NONE_UNHEALTHY: &str = "an unhealthy version is never kept";
const CONFIG_STAYS: &str = "the config is never lost";
const ENDS: &str = "everything ends in a version that works";
const LAST_IS_KEPT: &str = "the last upgrade may be kept";

/// Limit on all explorations together, as long as nothing else has the two processors.
const LIMIT: Duration = Duration::from_secs(120);
/// The threads of an exploration.
const THREADS: u32 = 2;

/// The time for which all explorations up to now have had two processors: a host that is busy with others adds nothing to it.
fn explored_for() -> Duration {
    let had = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(had.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(had.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds) / THREADS
}

fn explore(bounds: Budgets) {
    let machine = Machine {
        bounds,
        mistake: None,
    };
    let checker = machine
        .checker()
        .threads(THREADS as usize)
        .spawn_bfs()
        .join();
    println!(
        "{bounds:?}: {} states, {} of them distinct, at most {} steps deep, {:.1} s with all before",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        explored_for().as_secs_f64()
    );
    for (name, path) in checker.discoveries() {
        let actions = path.clone().into_actions();
        let last = path.last_state();
        let broken = [true, false].map(|lost| last.can_boot(lost));
        if name != LAST_IS_KEPT {
            println!(
                "{name}: {:?} {broken:?}\n{actions:#?}\n{:#?}",
                last.broken, last.power
            );
        }
    }
    checker.assert_properties();
    assert!(explored_for() < LIMIT, "{:?}", explored_for());
}

#[test]
fn a_machine_with_a_mistake_breaks_its_promises() {
    let bounds = |upgrades, crashes| Budgets {
        upgrades,
        cuts: 1,
        crashes,
        configs: 1,
    };
    for (mistake, promise, bounds) in [
        // Seen when a slot is written to again.
        (Mistake::EntryFirst, BOOTS, bounds(2, 1)),
        (Mistake::NoFlush, CONFIG_STAYS, bounds(1, 0)),
        (Mistake::NoGate, NONE_UNHEALTHY, bounds(1, 0)),
        (Mistake::BlessesNewest, BOOTS, bounds(1, 1)),
        (Mistake::ConfigInPlace, CONFIG_STAYS, bounds(0, 0)),
    ] {
        let mistake = Some(mistake);
        let checker = Machine { bounds, mistake }.checker().spawn_bfs().join();
        let found = checker.discoveries();
        println!("{mistake:?}: {:?}", found.keys().collect::<Vec<_>>());
        assert!(found.contains_key(promise), "{mistake:?} was not found");
    }
}

#[test]
fn two_upgrades_with_cuts_and_a_crash() {
    explore(Budgets {
        upgrades: 2,
        cuts: 2,
        crashes: 1,
        configs: 0,
    });
}

#[test]
fn three_upgrades_and_a_cut() {
    explore(Budgets {
        upgrades: 3,
        cuts: 1,
        crashes: 0,
        configs: 0,
    });
}

#[test]
fn an_upgrade_and_a_config_with_cuts_and_crashes() {
    explore(Budgets {
        upgrades: 1,
        cuts: 3,
        crashes: 2,
        configs: 1,
    });
}
