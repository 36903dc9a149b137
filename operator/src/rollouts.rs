//! When a new rollout begins, and what people's wishes mean for the one that is there. Pure.
//!
//! ```text
//!  the pool names another image ────────────────────────────► nothing new begins, and then a new rollout, once nothing of the old one is
//!  (its channel may have withdrawn a release)                  under way
//!  the rollout is done, and a node does not run its version ─► a new rollout of the same version: a node that joined, or was released
//!  anything else ───────────────────────────────────────────► the rollout that is there
//! ```

use std::collections::BTreeMap;

use instar_rollout::{
    BadRollout, Command, MachineName, Member, Phase, Policy, Record, Release, Seconds, Select,
    Step, Wave,
};

use crate::api::PoolSpec;
use crate::node::NodeView;

/// What to do about a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Begin a rollout of the image that the pool names.
    Another,
    /// Begin a rollout of the same version again.
    Again,
    /// Go on with the one that is there.
    GoOn,
}

/// Decides from the rollout that is there: the image that it was begun with, and its record.
pub(crate) fn next(image: &str, rollout: Option<(&str, &Record)>, nodes: &[NodeView]) -> Next {
    let Some((begun_with, record)) = rollout else {
        return Next::Another;
    };
    let is_free = !record
        .machines
        .values()
        .any(|entry| entry.step.is_under_way());
    if begun_with != image {
        return match is_free {
            true => Next::Another,
            false => Next::GoOn,
        };
    }
    let is_done = record.phase == Phase::Done && record.has_ended();
    match is_done && nodes.iter().any(|node| is_due(node, record)) {
        true => Next::Again,
        false => Next::GoOn,
    }
}

/// Whether a node has to get the version of a rollout that is done. One that failed has to wait for another version, or for a person.
fn is_due(node: &NodeView, record: &Record) -> bool {
    let entry = record.machines.get(&MachineName::from(node.name.as_str()));
    let has_failed = entry.is_some_and(|entry| matches!(entry.step, Step::Failed { .. }));
    let runs_another = node.version.as_ref() != Some(&record.target.version);
    runs_another && !has_failed && node.hold.is_none() && node.unready.is_none()
}

/// The label, in a record alone, of nodes that this operator does not run on.
const ELSEWHERE: &str = "operator=elsewhere";

/// The policies of a rollout: the pool's, and that the operator's own node is the last one.
fn policies(policy: &Policy) -> Vec<Policy> {
    let first = Wave {
        select: Select::Label(ELSEWHERE.to_owned()),
        soak: Seconds(0),
    };
    let own_node_last = Policy {
        waves: vec![first],
        max_failures: policy.max_failures,
        patience: policy.patience,
        ..Policy::default()
    };
    vec![policy.clone(), own_node_last]
}

/// Begins a rollout of a version over these nodes. Nodes that failed at this very version before keep their failure, and are not tried again.
pub(crate) fn begin(
    target: Release,
    policy: &Policy,
    nodes: &[NodeView],
    own_node: Option<&str>,
    before: Option<&Record>,
) -> Result<Record, BadRollout> {
    let members: BTreeMap<MachineName, Member> = nodes
        .iter()
        .map(|node| {
            let labels = node
                .labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"));
            let member = Member {
                pool: String::new(),
                labels: labels.collect(),
            };
            (MachineName::from(node.name.as_str()), member)
        })
        .collect();
    // Labels that no wave asks for are not kept: a record has a size.
    let wanted: Vec<&String> = policy.waves.iter().filter_map(label).collect();
    let members = members.into_iter().map(|(name, mut member)| {
        member.labels.retain(|label| wanted.contains(&label));
        if own_node != Some(name.as_str()) {
            member.labels.insert(ELSEWHERE.to_owned());
        }
        (name, member)
    });
    let mut record = Record::begin(target, policies(policy), members.collect())?;
    let same = before.filter(|before| before.target.is(&record.target));
    for (name, entry) in same.into_iter().flat_map(|before| &before.machines) {
        if let (Step::Failed { .. }, Some(own)) = (&entry.step, record.machines.get_mut(name)) {
            own.step = entry.step.clone();
        }
    }
    // They were counted once.
    record.forgiven = record.failures();
    Ok(record)
}

fn label(wave: &Wave) -> Option<&String> {
    match &wave.select {
        Select::Label(label) => Some(label),
        _ => None,
    }
}

/// The reasons of a pause in the pool.
const PAUSED: &str = "spec.paused is set";
const NOT_MEANT: &str = "the pool names another image, whose rollout comes next";

/// Takes what the pool says now into the record. `is_meant`: the pool still names the image of this rollout. Returns whether anything changed.
pub(crate) fn take_in(
    record: &mut Record,
    spec: &PoolSpec,
    policy: &Policy,
    is_meant: bool,
) -> bool {
    let before = record.clone();
    if !record.has_ended() {
        record.policies = policies(policy);
        record.approved = spec.approved_waves as usize;
        let is_over = !is_meant && record.phase == Phase::Rolling;
        let paused = spec.paused.then_some(PAUSED);
        let paused = paused.or_else(|| is_over.then_some(NOT_MEANT));
        record.paused = paused.map(str::to_owned);
    }
    let changed = *record != before;
    if changed {
        record.revision += 1;
    }
    changed
}

/// The texts of the annotation with a person's command.
pub(crate) const RESUME: &str = "resume";
pub(crate) const RETRY: &str = "retry";
pub(crate) const ABORT: &str = "abort";
pub(crate) const ROLLBACK: &str = "rollback";

/// A person's command, by the text of its annotation.
pub(crate) fn command(text: &str) -> Option<Command> {
    match text {
        RESUME => Some(Command::Resume),
        RETRY => Some(Command::Retry),
        ABORT => Some(Command::Abort),
        ROLLBACK => Some(Command::Rollback("a person asked for it".to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Condition, Fact, Facts, Moment, Reason, decide};
    use serde_json::json;

    use super::*;

    fn release(version: &str) -> Release {
        Release {
            version: version.to_owned(),
            digest: None,
            image: Some(format!("r/i:{version}")),
        }
    }

    fn node(name: &str, version: &str) -> NodeView {
        let object = json!({
            "metadata": {"name": name, "labels": {crate::api::VERSION_LABEL: version}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        NodeView::of(&serde_json::from_value(object).unwrap())
    }

    fn record(nodes: &[NodeView]) -> Record {
        begin(release("v2"), &Policy::default(), nodes, None, None).unwrap()
    }

    fn failed() -> Step {
        Step::Failed {
            at: Moment(1),
            why: "it burns".to_owned(),
        }
    }

    #[test]
    fn a_rollout_begins_for_another_image_or_a_node_that_is_due() {
        let old = [node("n1", "v1")];
        let updated = [node("n1", "v2")];
        assert_eq!(next("r/i:v2", None, &old), Next::Another);
        let rolling = record(&old);
        assert_eq!(next("r/i:v2", Some(("r/i:v2", &rolling)), &old), Next::GoOn);
        assert_eq!(
            next("r/i:v3", Some(("r/i:v2", &rolling)), &old),
            Next::Another
        );
        let mut done = rolling.clone();
        done.phase = Phase::Done;
        assert_eq!(
            next("r/i:v2", Some(("r/i:v2", &done)), &updated),
            Next::GoOn
        );
        assert_eq!(next("r/i:v2", Some(("r/i:v2", &done)), &old), Next::Again);
        let mut halted = rolling;
        halted.phase = Phase::Halted { why: String::new() };
        assert_eq!(next("r/i:v2", Some(("r/i:v2", &halted)), &old), Next::GoOn);
    }

    #[test]
    fn a_node_that_is_held_unready_or_failed_is_not_due() {
        let mut done = record(&[node("n1", "v1")]);
        done.phase = Phase::Done;
        let held = NodeView {
            hold: Some("mine".to_owned()),
            ..node("n1", "v1")
        };
        let unready = NodeView {
            unready: Some("away".to_owned()),
            ..node("n1", "v1")
        };
        for other in [held, unready] {
            assert_eq!(
                next("r/i:v2", Some(("r/i:v2", &done)), &[other]),
                Next::GoOn
            );
        }
        done.machines
            .get_mut(&MachineName::from("n1"))
            .unwrap()
            .step = failed();
        assert_eq!(
            next("r/i:v2", Some(("r/i:v2", &done)), &[node("n1", "v1")]),
            Next::GoOn
        );
    }

    #[test]
    fn nothing_new_begins_while_a_node_is_under_way() {
        let mut record = record(&[node("n1", "v1")]);
        record
            .machines
            .get_mut(&MachineName::from("n1"))
            .unwrap()
            .step = Step::Switching {
            since: Moment(1),
            mark: 0,
        };
        let next = next("r/i:v3", Some(("r/i:v2", &record)), &[node("n1", "v1")]);
        assert_eq!(next, Next::GoOn);
    }

    #[test]
    fn a_failure_of_this_very_version_is_kept_and_counted_once() {
        let nodes = [node("n1", "v1"), node("n2", "v1")];
        let mut before = record(&nodes);
        before
            .machines
            .get_mut(&MachineName::from("n1"))
            .unwrap()
            .step = failed();
        let again = begin(
            release("v2"),
            &Policy::default(),
            &nodes,
            None,
            Some(&before),
        )
        .unwrap();
        assert_eq!((again.failures(), again.forgiven), (1, 1));
        let other = begin(
            release("v3"),
            &Policy::default(),
            &nodes,
            None,
            Some(&before),
        )
        .unwrap();
        assert_eq!((other.failures(), other.forgiven), (0, 0));
    }

    #[test]
    fn the_operators_own_node_is_the_last_one() {
        let nodes = [node("n1", "v1"), node("n2", "v1"), node("n3", "v1")];
        let own = Some("n1");
        let record = begin(release("v2"), &Policy::default(), &nodes, own, None).unwrap();
        let ready = Fact {
            condition: Condition::Ready,
            running: Some(release("v1")),
            ..Fact::away("")
        };
        let names = record.machines.keys().cloned();
        let facts: Facts = names.map(|name| (name, ready.clone())).collect();
        let decision = decide(&record, &facts, Moment(1));
        let asked: Vec<&str> = decision
            .actions
            .iter()
            .map(|it| it.machine().as_str())
            .collect();
        assert_eq!(asked, ["n2", "n3"]);
        let reason = &decision.reasons[&MachineName::from("n1")];
        assert_eq!(reason, &Reason::Wave(MachineName::from("n2")));
    }

    #[test]
    fn a_pool_pauses_and_approves() {
        let mut record = record(&[node("n1", "v1")]);
        let wish =
            json!({"nodeSelector": {}, "image": "r/i:v2", "paused": true, "approvedWaves": 2});
        let wish: PoolSpec = serde_json::from_value(wish).unwrap();
        assert!(take_in(&mut record, &wish, &Policy::default(), true));
        assert_eq!((record.paused.is_some(), record.approved), (true, 2));
        assert!(!take_in(&mut record, &wish, &Policy::default(), true));
    }

    #[test]
    fn nothing_new_begins_with_an_image_that_the_pool_names_no_more() {
        let mut record = record(&[node("n1", "v1"), node("n2", "v1")]);
        let wish = json!({"nodeSelector": {}, "image": "r/i:v3"});
        let wish: PoolSpec = serde_json::from_value(wish).unwrap();
        assert!(take_in(&mut record, &wish, &Policy::default(), false));
        assert_eq!(record.paused.as_deref(), Some(NOT_MEANT));
        // A person's way back goes on.
        record.phase = Phase::GoingBack { why: String::new() };
        take_in(&mut record, &wish, &Policy::default(), false);
        assert_eq!(record.paused, None);
    }
}
