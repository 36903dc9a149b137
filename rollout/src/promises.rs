//! The promises of one round: checked by the model in every state, and in each step of a trace of a real run.

use crate::action::Action;
use crate::entry::{Step, hold};
use crate::machine::Facts;
use crate::record::{Phase, Record};

/// The promise that a round has broken: from the record before it to the record after it, by these facts and with these actions. None if it has
/// kept all of them.
pub fn broken(
    before: &Record,
    after: &Record,
    facts: &Facts,
    actions: &[Action],
) -> Option<&'static str> {
    let switches = |action: &Action| matches!(action, Action::Switch(_));
    let is_stopped = after.phase != Phase::Rolling || after.paused.is_some();
    if is_stopped && actions.iter().any(switches) {
        return Some("a machine is asked to upgrade after the stop");
    }
    let mut begins_any = false;
    for (name, entry) in &after.machines {
        let Some(before) = before.machines.get(name) else {
            return Some("a machine comes into a rollout that has begun");
        };
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

fn exceeds_a_limit(record: &Record) -> bool {
    record.policies.iter().any(|policy| {
        let machines = record.machines.values();
        let machines: Vec<_> = machines.filter(|entry| policy.is_for(entry)).collect();
        let under_way = machines.iter().filter(|entry| entry.step.is_under_way());
        under_way.count() > policy.most_at_once(machines.len())
    })
}
