//! The promises of one round: checked by the model in every state, and in each step of a trace of a real run.

use crate::action::Action;
use crate::entry::{Entry, Step, hold, is_as_before};
use crate::limits::{failed_as_a_whole, lacks_a_proof};
use crate::machine::{Facts, MachineName};
use crate::policy::Approval;
use crate::record::{Phase, Record};
use crate::seconds::Moment;

/// The promise that a round at this moment has broken: from the record before it to the record after it, by these facts and with these actions. None if
/// it has kept all of them.
pub fn broken(
    before: &Record,
    after: &Record,
    facts: &Facts,
    actions: &[Action],
    now: Moment,
) -> Option<&'static str> {
    let switches = |action: &Action| matches!(action, Action::Switch(_));
    let is_stopped = after.phase != Phase::Rolling || after.paused.is_some();
    if is_stopped && actions.iter().any(switches) {
        return Some("a machine is asked to upgrade after the stop");
    }
    if let Some(promise) = begins_at_a_wrong_time(after, actions, now) {
        return Some(promise);
    }
    let is_held = |action: &Action| {
        let entry = before.machines.get_key_value(action.machine());
        entry.is_some_and(|(name, entry)| hold(name, entry, facts).is_some())
    };
    if actions.iter().any(is_held) {
        return Some("a machine that a person holds is asked");
    }
    let mut begins_any = false;
    for (name, entry) in &after.machines {
        let record = before;
        let Some(before) = record.machines.get(name) else {
            return Some("a machine comes into a rollout that has begun");
        };
        let fact = facts.get(name);
        let shows_nothing =
            fact.is_some_and(|fact| is_as_before(&before.step, fact, &record.target));
        let fails = matches!(entry.step, Step::Failed { .. });
        if fails && shows_nothing && !record.may_be_asked(name, before, facts, now) {
            return Some("a machine fails that is as before, and that nobody may ask");
        }
        if before.hold != entry.hold {
            return Some("a person's hold is taken back");
        }
        if !entry.step.is_under_way() || before.step.is_under_way() {
            continue;
        }
        begins_any = true;
        if hold(name, before, facts).is_some() {
            return Some("a machine that a person holds is touched");
        }
        if matches!(entry.step, Step::Switching { .. }) {
            if after.phase != Phase::Rolling {
                return Some("a machine begins after the stop");
            }
            if after.failures() >= after.forgiven + after.most_failures() {
                return Some("a version that failed is tried on the next machine");
            }
            if is_unproven_for(name, entry, after) {
                return Some("a machine begins before the wave ahead of it has proved the version");
            }
            let mut pools = after.pools_before(&entry.pool).into_iter();
            if pools.any(|pool| failed_as_a_whole(after, pool)) {
                return Some("a machine begins after a pool ahead of its own of which all failed");
            }
        }
    }
    let intended = |action: &Action| {
        let entry = after.machines.get(action.machine());
        entry.is_some_and(|entry| action.is_intent_of(&entry.step))
    };
    if !actions.iter().all(intended) {
        return Some("a machine is asked for something that is not in the record");
    }
    (begins_any && exceeds_a_limit(after))
        .then_some("more machines are under way than a policy allows")
}

/// The promise that a round breaks that asks machines outside of their windows, or without the approval of a person.
fn begins_at_a_wrong_time(after: &Record, actions: &[Action], now: Moment) -> Option<&'static str> {
    actions.iter().find_map(|action| {
        let Action::Switch(name) = action else {
            return None;
        };
        let entry = after.machines.get(name)?;
        if !after.is_open_for(entry, now) {
            return Some("a machine is asked to upgrade outside of its window");
        }
        let is_approved = after.is_approved(name, entry);
        (!is_approved).then_some("a machine is asked to upgrade in a wave that nobody has approved")
    })
}

/// Whether no machine of the wave before a machine's own has proved the version, and no person has said that this does not matter.
fn is_unproven_for(name: &MachineName, entry: &Entry, record: &Record) -> bool {
    record.policies.iter().any(|policy| {
        let counts = policy.approval == Approval::None && policy.is_for(entry);
        if policy.waves.is_empty() || !counts {
            return false;
        }
        let waves = policy.waves_in(&record.machines);
        let Some(before) = waves.get(name).and_then(|own| own.checked_sub(1)) else {
            return false;
        };
        let members = waves.iter().filter(|(_, wave)| **wave == before);
        let members = members.filter_map(|(name, _)| record.machines.get(*name));
        lacks_a_proof(&members.collect::<Vec<_>>(), before + 1).is_some()
    })
}

fn exceeds_a_limit(record: &Record) -> bool {
    record.policies.iter().any(|policy| {
        let machines = record.machines.values();
        let machines: Vec<_> = machines.filter(|entry| policy.is_for(entry)).collect();
        let under_way = machines.iter().filter(|entry| entry.step.is_under_way());
        under_way.count() > policy.most_at_once(machines.len())
    })
}
