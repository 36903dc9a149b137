//! The promises: what has to hold in every state, and what has to be found in some, or the exploration would show nothing.

use instar_rollout::{Approval, Condition, Phase, Reason, Seconds, Step};
use stateright::{Model as _, Property};

use crate::fleet::Fleet;
use crate::state::{Machine, State};

/// The promises of an exploration.
pub(crate) fn properties(fleet: &Fleet) -> Vec<Property<Fleet>> {
    let mut all = kept_always();
    all.extend(found_sometimes());
    if !fleet.policy.windows.is_empty() {
        all.extend(found_with_hours());
    }
    if fleet.policy.approval == Approval::Waves {
        all.extend(found_with_approvals());
    }
    if fleet.policy.rate.is_some() {
        all.extend(found_with_a_rate());
    }
    if fleet.policy.waves.iter().any(|wave| wave.soak > Seconds(0)) {
        all.extend(found_with_a_soak());
    }
    if !fleet.policy.order.is_empty() {
        all.extend(found_with_an_order());
    }
    all
}

fn kept_always() -> Vec<Property<Fleet>> {
    vec![
        Property::always("no promise is broken", |_, state: &State| {
            state.broken.is_none()
        }),
        Property::always(
            "the limit is never exceeded",
            |model: &Fleet, state: &State| {
                let most = model.limit();
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
            let failed = |machine: &&Machine| machine.failed_at.is_some();
            let failures = state.machines.values().filter(failed).count();
            failures <= model.limit() * (1 + usize::from(state.resumed))
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
                    let is_left =
                        machine.cordon || entry.hold.is_some() || machine.is_off || machine.is_gone;
                    let is_updated = matches!(entry.step, Step::Updated { .. });
                    is_left || !is_updated
                })
        }),
    ]
}

fn found_sometimes() -> Vec<Property<Fleet>> {
    vec![
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

fn found_with_hours() -> Vec<Property<Fleet>> {
    vec![
        Property::sometimes("a machine waits for its window", |_, state: &State| {
            state.waits_for(|reason| matches!(reason, Reason::Window(_)))
        }),
        Property::sometimes(
            "a machine that was to begin is not asked before the window opens again",
            |_, state: &State| {
                let is_to_begin = |step: &Step| matches!(step, Step::Switching { .. });
                let mut machines = state.machines.iter();
                let is_idle = state
                    .drivers
                    .iter()
                    .all(|driver| driver.to_send.is_empty() && driver.asked.is_empty());
                !state.is_open()
                    && is_idle
                    && machines.any(|(name, machine)| {
                        machine.fact().condition == Condition::Ready
                            && !machine.has_new
                            && is_to_begin(&state.record.machines[name].step)
                    })
            },
        ),
    ]
}

fn found_with_approvals() -> Vec<Property<Fleet>> {
    vec![
        Property::sometimes("the second wave waits for a person", |_, state: &State| {
            state.waits_for(|reason| *reason == Reason::Approval(2))
        }),
        Property::sometimes(
            "an approval is withdrawn when a machine was to begin",
            |_, state: &State| {
                let mut entries = state.record.machines.values();
                state.approved == 0 && entries.any(|entry| entry.step.is_under_way())
            },
        ),
    ]
}

fn found_with_a_rate() -> Vec<Property<Fleet>> {
    vec![
        Property::sometimes(
            "a machine waits because enough have begun",
            |_, state: &State| state.waits_for(|reason| matches!(reason, Reason::Rate(_))),
        ),
        Property::sometimes(
            "all have the version half a day later",
            |_, state: &State| {
                state.now > 0 && state.machines.values().all(|machine| machine.has_new)
            },
        ),
    ]
}

fn found_with_a_soak() -> Vec<Property<Fleet>> {
    vec![
        Property::sometimes("a machine waits for a soak", |_, state: &State| {
            state.waits_for(|reason| matches!(reason, Reason::Soaks(_)))
        }),
        Property::sometimes(
            "the canary loses its power while it soaks",
            |_, state: &State| {
                let canary = state.machines.iter().next();
                canary.is_some_and(|(name, machine)| {
                    let is_updated =
                        matches!(state.record.machines[name].step, Step::Updated { .. });
                    machine.is_off && is_updated && state.record.phase == Phase::Rolling
                })
            },
        ),
        Property::sometimes("all have the version after a soak", |_, state: &State| {
            state.now > 0 && state.machines.values().all(|machine| machine.has_new)
        }),
    ]
}

fn found_with_an_order() -> Vec<Property<Fleet>> {
    vec![
        Property::sometimes(
            "a machine waits for the pool ahead of its own",
            |_, state: &State| state.waits_for(|reason| matches!(reason, Reason::Pool(_))),
        ),
        Property::sometimes("both pools have the version", |_, state: &State| {
            state.machines.values().all(|machine| machine.has_new)
        }),
    ]
}
