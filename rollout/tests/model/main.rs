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
//!  person   Pause, Resume, Retry, Abort, RollBack, Hold, Release, Cordon, Approve, Withdraw
//!  time     Tick, Turn: half a day, after which a window opens or closes, a soak or the time of a rate is over
//! ```
//!
//! Every action but those of the drivers has a budget, and a driver's round that changes nothing is no action, so the graph has no
//! circles, which is checked as well. So "everything ends" can say that a state in which nothing more can happen is an end.

#![allow(clippy::unwrap_used, clippy::panic)]

mod fleet;
mod promises;
mod state;
mod steps;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::time::Instant;

use instar_rollout::{OnFailure, Policy};
use stateright::{Checker as _, Model as _};

use crate::fleet::{
    BUDGETS, Budgets, Fleet, after_a_canary, after_a_soak, approved, in_hours, in_order, policy,
    rated, share,
};
use crate::state::State;

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
    explore(
        "canary, one at a time, all go back",
        Fleet {
            machines: 2,
            policy: after_a_canary(policy(1, OnFailure::Rollback)),
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

/// The same, where a person has those that failed try again; one of them may only have been late.
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
    explore(
        "canary, two failures, halt",
        Fleet {
            machines: 2,
            policy: Policy {
                max_failures: NonZeroU32::new(2).unwrap(),
                ..after_a_canary(policy(1, OnFailure::Halt))
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

/// In the first half of each day alone: a driver may die before it has asked a machine, and another one go on when the window is closed.
#[test]
fn within_hours() {
    explore(
        "within hours, one at a time, all go back",
        Fleet {
            machines: 2,
            policy: in_hours(policy(1, OnFailure::Rollback)),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                turns: 2,
                outages: 0,
                ..BUDGETS
            },
        },
    );
}

/// Two of three are 67 percent.
#[test]
fn a_share_at_once() {
    explore(
        "67 percent of three at once, halt",
        Fleet {
            machines: 3,
            policy: share(67, OnFailure::Halt),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                outages: 0,
                removals: 1,
                ..BUDGETS
            },
        },
    );
}

/// A person approves the canary, and then the other one, and may take that back.
#[test]
fn waves_are_approved() {
    explore(
        "a canary, each wave approved, all go back",
        Fleet {
            machines: 2,
            policy: approved(after_a_canary(policy(1, OnFailure::Rollback))),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                ..BUDGETS
            },
        },
    );
}

/// Hours, a share and approvals together.
#[test]
fn hours_a_share_and_approvals() {
    let limits = in_hours(approved(after_a_canary(share(50, OnFailure::Rollback))));
    explore(
        "within hours, half at once, each wave approved",
        Fleet {
            machines: 3,
            policy: limits,
            lease: false,
            budgets: Budgets {
                ticks: 0,
                turns: 1,
                outages: 0,
                resumes: 0,
                ..BUDGETS
            },
        },
    );
}

/// One machine in half a day; a driver may die before it has asked a machine, and another one go on half a day later.
#[test]
fn a_rate() {
    explore(
        "one in half a day, two at once, halt",
        Fleet {
            machines: 2,
            policy: rated(policy(2, OnFailure::Halt)),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                turns: 1,
                outages: 0,
                resumes: 0,
                retries: 1,
                ..BUDGETS
            },
        },
    );
}

/// A canary that has to run the version for half a day, and may lose its power meanwhile.
#[test]
fn a_soak() {
    explore(
        "a canary that soaks, one at a time, all go back",
        Fleet {
            machines: 2,
            policy: after_a_soak(policy(1, OnFailure::Rollback)),
            lease: false,
            budgets: Budgets {
                ticks: 0,
                turns: 1,
                resumes: 0,
                ..BUDGETS
            },
        },
    );
}

/// Two machines, and then the one of the pool after theirs. Two failures are allowed, and yet a pool of which all failed lets no other begin.
#[test]
fn an_order_of_pools() {
    explore(
        "one pool after the other, two failures, halt",
        Fleet {
            machines: 3,
            policy: Policy {
                max_failures: NonZeroU32::new(2).unwrap(),
                ..in_order(policy(2, OnFailure::Halt))
            },
            lease: false,
            budgets: Budgets {
                ticks: 0,
                outages: 0,
                ..BUDGETS
            },
        },
    );
}
