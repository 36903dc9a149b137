//! How a rollout begins, and what people's wishes mean for the one that is there. Pure.

use std::collections::{BTreeMap, BTreeSet};

use instar_rollout::{
    BadRollout, Command, Entry, MachineName, Member, Phase, Policy, Record, Refused, Release,
    Seconds, Select, Step, Wave,
};
use instar_values::Version;

use crate::api::{Kind, LeftBehind, PoolSpec, Rollout};
use crate::left_behind;
use crate::node::NodeView;

/// The label, in a record alone, of nodes that this operator does not run on.
const ELSEWHERE: &str = "operator=elsewhere";

/// The policies of a rollout: the pool's, and that the operator's own node is the last one, as long as there is another one to wait for: who is
/// held and has not begun, or has left, is not waited for.
fn policies(
    policy: &Policy,
    machines: &BTreeMap<MachineName, Entry>,
    is_held: impl Fn(&MachineName) -> bool,
) -> Vec<Policy> {
    let is_awaited = |(name, entry): (&MachineName, &Entry)| {
        let is_before = matches!(
            entry.step,
            Step::Waiting | Step::Preparing { .. } | Step::Prepared
        );
        let has_left = matches!(entry.step, Step::Left { .. });
        entry.labels.contains(ELSEWHERE) && !has_left && !(is_before && is_held(name))
    };
    if !machines.iter().any(is_awaited) {
        return vec![policy.clone()];
    }
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

/// The nodes as machines of a rollout.
fn members(
    policy: &Policy,
    nodes: &[NodeView],
    own_node: Option<&str>,
) -> BTreeMap<MachineName, Member> {
    // Labels that no wave asks for are not kept: a record has a size.
    let wanted: Vec<&String> = policy.waves.iter().filter_map(label).collect();
    let members = nodes.iter().map(|node| {
        let labels = node.labels.iter();
        let labels = labels.map(|(key, value)| format!("{key}={value}"));
        let mut labels: BTreeSet<String> = labels.filter(|it| wanted.contains(&it)).collect();
        if own_node != Some(node.name.as_str()) {
            labels.insert(ELSEWHERE.to_owned());
        }
        let member = Member {
            pool: String::new(),
            labels,
        };
        (MachineName::from(node.name.as_str()), member)
    });
    members.collect()
}

/// The policy of a rollout of a version that is not over all nodes of a pool: without the waves of labels whose nodes have gone past that version, and
/// are no part of it. Those nodes are the proof, and an empty wave would let nobody begin. `nodes`: all of the pool.
pub(crate) fn fitting(
    policy: &Policy,
    version: &Version,
    nodes: &[NodeView],
    is_part: impl Fn(&NodeView) -> bool,
) -> Policy {
    let is_past = |node: &NodeView| {
        let runs = node.version.as_ref();
        let runs = runs.and_then(|text| text.parse::<Version>().ok());
        runs.is_some_and(|runs| runs > *version)
    };
    let is_proven = |wave: &Wave| {
        let Some(label) = label(wave) else {
            return false;
        };
        let mut own = nodes.iter().filter(|node| {
            let mut labels = node.labels.iter();
            labels.any(|(key, value)| format!("{key}={value}") == *label)
        });
        !own.clone().any(&is_part) && own.any(&is_past)
    };
    let mut policy = policy.clone();
    policy.waves.retain(|wave| !is_proven(wave));
    policy
}

/// Whether a rollout over these nodes could come to its end.
pub(crate) fn check(policy: &Policy, nodes: &[NodeView]) -> Result<(), BadRollout> {
    let none = Release {
        version: String::new(),
        digest: None,
        image: None,
    };
    Record::begin(none, vec![policy.clone()], members(policy, nodes, None)).map(drop)
}

/// Begins a rollout of a version over these nodes. Nodes that failed at this very version before, in the last rollout or when the others went on
/// without them, keep their failure, and are not tried again.
pub(crate) fn begin(
    target: Release,
    policy: &Policy,
    nodes: &[NodeView],
    own_node: Option<&str>,
    before: Option<&Record>,
    left: &[LeftBehind],
) -> Result<Record, BadRollout> {
    let mut record = Record::begin(
        target,
        vec![policy.clone()],
        members(policy, nodes, own_node),
    )?;
    let held = nodes.iter().filter(|node| node.hold.is_some());
    let held: Vec<&str> = held.map(|node| node.name.as_str()).collect();
    record.policies = policies(policy, &record.machines, |name| {
        held.contains(&name.as_str())
    });
    let same = before.filter(|before| before.target.is(&record.target));
    for (name, entry) in same.into_iter().flat_map(|before| &before.machines) {
        if let (Step::Failed { .. }, Some(own)) = (&entry.step, record.machines.get_mut(name)) {
            own.step = entry.step.clone();
        }
    }
    for (name, entry) in &mut record.machines {
        if let Some(failure) = left_behind::failure(left, name, &record.target) {
            entry.step = failure;
        }
    }
    // They were counted once, and no wave waits for their proof.
    record.forgiven = record.failures();
    for entry in record.machines.values_mut() {
        entry.forgiven = matches!(entry.step, Step::Failed { .. });
    }
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
const OTHER_IMAGE: &str = "the pool names another image, whose rollout comes next";
const OTHER_PATCHES: &str =
    "the pool names other patches or another image, whose rollout comes next";

/// The wishes of a pool now.
pub(crate) struct Wishes<'a> {
    pub(crate) policy: &'a Policy,
    /// The waves of this version that a person has approved.
    pub(crate) approved: u32,
    pub(crate) is_paused: bool,
    /// The kind of this rollout.
    pub(crate) kind: Kind,
    /// Whether the pool still names it.
    pub(crate) is_meant: bool,
}

/// Takes what the pool says now into the record. `is_held`: whether a node is left alone. Returns whether anything changed.
pub(crate) fn take_in(
    record: &mut Record,
    wishes: &Wishes<'_>,
    is_held: impl Fn(&MachineName) -> bool,
) -> bool {
    let before = record.clone();
    if !record.has_ended() {
        record.policies = policies(wishes.policy, &record.machines, is_held);
        // What is approved once the pool names something else is for that.
        if wishes.is_meant {
            record.approved = wishes.approved as usize;
        }
        let is_over = !wishes.is_meant && record.phase == Phase::Rolling;
        let paused = wishes.is_paused.then_some(PAUSED);
        let other = match wishes.kind {
            Kind::Version => OTHER_IMAGE,
            Kind::Config => OTHER_PATCHES,
        };
        let paused = paused.or_else(|| is_over.then_some(other));
        record.paused = paused.map(str::to_owned);
    }
    let changed = *record != before;
    if changed {
        record.revision += 1;
    }
    changed
}

/// A pool that is not valid.
pub(crate) struct Fault<'a> {
    /// Why it is not.
    pub(crate) why: &'a str,
    pub(crate) is_paused: bool,
    /// Whether no node could be asked to go back either.
    pub(crate) stops_the_way_back: bool,
}

/// Takes into the record that the pool is not valid: nothing new begins. The way back goes on, as far as it can: otherwise the nodes would keep a
/// bad version for as long as the fault lasts. Returns whether anything changed.
pub(crate) fn take_in_fault(record: &mut Record, fault: &Fault<'_>) -> bool {
    if record.has_ended() {
        return false;
    }
    let goes_back = matches!(record.phase, Phase::GoingBack { .. });
    let paused = match goes_back && !fault.stops_the_way_back {
        true => fault.is_paused.then(|| PAUSED.to_owned()),
        false => Some(format!("the pool is not valid: {}", fault.why)),
    };
    let changed = record.paused != paused;
    if changed {
        record.paused = paused;
        record.revision += 1;
    }
    changed
}

/// The part of `spec.approvedWaves` that does not count for a rollout that was set aside, and goes on: approvals meanwhile were for the other one.
pub(crate) fn approved_before_it_goes_on(spec: &PoolSpec, record: &Record) -> u32 {
    let approved = u32::try_from(record.approved).unwrap_or(u32::MAX);
    spec.approved_waves.saturating_sub(approved)
}

/// The waves that a person has approved since then. Who sets the field lower counts on from there.
pub(crate) fn approvals(spec: &PoolSpec, rollout: &mut Rollout) -> u32 {
    rollout.approved_before = rollout.approved_before.min(spec.approved_waves);
    spec.approved_waves - rollout.approved_before
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

/// Carries out a person's command. By `retry` nodes that are left behind try again as well, also where no node of the newest rollout has failed.
///
/// # Errors
/// It makes no sense now; nothing changed.
pub(crate) fn obey(
    record: &mut Record,
    left: &mut [LeftBehind],
    command: Command,
) -> Result<(), Refused> {
    let is_retry = command == Command::Retry;
    match record.command(command) {
        Ok(()) => {
            if is_retry {
                left_behind::try_again(left);
            }
            Ok(())
        }
        Err(Refused::NoFailure) if is_retry && left_behind::try_again(left) => Ok(()),
        Err(refused) => Err(refused),
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
        begin(release("v2"), &Policy::default(), nodes, None, None, &[]).unwrap()
    }

    fn failed() -> Step {
        Step::Failed {
            at: Moment(1),
            why: "it burns".to_owned(),
        }
    }

    fn left_behind(node: &str, version: &str) -> LeftBehind {
        LeftBehind {
            node: node.to_owned(),
            version: version.to_owned(),
            why: "it burns".to_owned(),
            ..LeftBehind::default()
        }
    }

    #[test]
    fn retry_is_for_nodes_that_are_left_behind_as_well() {
        let mut record = record(&[node("n1", "v2")]);
        record.phase = Phase::Done;
        let (retry, before) = (|| Command::Retry, record.clone());
        assert_eq!(obey(&mut record, &mut [], retry()), Err(Refused::NoFailure));
        let mut left = [left_behind("n2", "v1")];
        assert_eq!(obey(&mut record, &mut left, retry()), Ok(()));
        assert!(left[0].tries_again && record == before);
        // While others go back, nobody tries anything again.
        left[0].tries_again = false;
        record.phase = Phase::GoingBack { why: String::new() };
        assert_eq!(
            obey(&mut record, &mut left, retry()),
            Err(Refused::GoesBack)
        );
        assert!(!left[0].tries_again);
        record.phase = Phase::Rolling;
        assert_eq!(obey(&mut record, &mut left, Command::Resume), Ok(()));
        assert!(!left[0].tries_again);
    }

    #[test]
    fn a_fault_of_the_pool_does_not_stop_the_way_back() {
        let mut record = record(&[node("n1", "v1"), node("n2", "v1")]);
        let fault = |is_paused, stops_the_way_back| Fault {
            why: "there is no release",
            is_paused,
            stops_the_way_back,
        };
        let invalid = Some("the pool is not valid: there is no release");
        assert!(take_in_fault(&mut record, &fault(false, false)));
        assert_eq!(record.paused.as_deref(), invalid);
        assert!(!take_in_fault(&mut record, &fault(false, false)));
        // A node that was under way has failed meanwhile.
        record.phase = Phase::GoingBack { why: String::new() };
        assert!(take_in_fault(&mut record, &fault(false, false)));
        assert_eq!(record.paused, None);
        assert!(take_in_fault(&mut record, &fault(true, false)));
        assert_eq!(record.paused.as_deref(), Some(PAUSED));
        assert!(take_in_fault(&mut record, &fault(false, true)));
        assert_eq!(record.paused.as_deref(), invalid);
        record.phase = Phase::WentBack { why: String::new() };
        assert!(!take_in_fault(&mut record, &fault(false, false)));
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
        let begun = |version, left: &[LeftBehind]| {
            let policy = Policy::default();
            begin(release(version), &policy, &nodes, None, Some(&before), left).unwrap()
        };
        let again = begun("v2", &[]);
        assert_eq!((again.failures(), again.forgiven), (1, 1));
        assert!(again.machines[&MachineName::from("n1")].forgiven);
        let other = begun("v3", &[]);
        assert_eq!((other.failures(), other.forgiven), (0, 0));
        // The others went on without it, and one that joined needs that version now.
        let left = [left_behind("n2", "v3")];
        let other = begun("v3", &left);
        assert_eq!((other.failures(), other.forgiven), (1, 1));
        let tried = &other.machines[&MachineName::from("n2")].step;
        assert!(matches!(tried, Step::Failed { why, .. } if why == "it burns"));
    }

    #[test]
    fn the_operators_own_node_is_the_last_one() {
        let nodes = [node("n1", "v1"), node("n2", "v1"), node("n3", "v1")];
        let own = Some("n1");
        let record = begin(release("v2"), &Policy::default(), &nodes, own, None, &[]).unwrap();
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

    fn wishes<'a>(policy: &'a Policy, is_paused: bool, is_meant: bool) -> Wishes<'a> {
        Wishes {
            policy,
            approved: 2,
            is_paused,
            kind: Kind::Version,
            is_meant,
        }
    }

    #[test]
    fn an_own_node_waits_for_nobody_who_is_held() {
        let nodes = [node("n1", "v1"), node("n2", "v1")];
        let begun = |nodes: &[NodeView]| {
            let policy = Policy::default();
            begin(release("v2"), &policy, nodes, Some("n1"), None, &[]).unwrap()
        };
        assert_eq!(begun(&nodes).policies.len(), 2);
        assert_eq!(begun(&nodes[..1]).policies.len(), 1, "it is alone");
        let mut record = begun(&nodes);
        let policy = Policy::default();
        let is_held = |name: &MachineName| name.as_str() == "n2";
        take_in(&mut record, &wishes(&policy, false, true), is_held);
        assert_eq!(record.policies.len(), 1);
        let second = record.machines.get_mut(&MachineName::from("n2")).unwrap();
        second.step = Step::Updated { at: Moment(1) };
        take_in(&mut record, &wishes(&policy, false, true), is_held);
        assert_eq!(record.policies.len(), 2, "it has to be well");
        let second = record.machines.get_mut(&MachineName::from("n2")).unwrap();
        second.step = Step::Left { why: String::new() };
        take_in(&mut record, &wishes(&policy, false, true), |_| false);
        assert_eq!(record.policies.len(), 1, "it is gone");
    }

    #[test]
    fn a_pool_pauses_and_approves() {
        let mut record = record(&[node("n1", "v1")]);
        let policy = Policy::default();
        let wishes = wishes(&policy, true, true);
        assert!(take_in(&mut record, &wishes, |_| false));
        assert_eq!((record.paused.is_some(), record.approved), (true, 2));
        assert!(!take_in(&mut record, &wishes, |_| false));
    }

    #[test]
    fn a_wave_that_selects_no_node_is_named() {
        let canary = Wave {
            select: Select::Label("canary=yes".to_owned()),
            soak: Seconds(0),
        };
        let policy = Policy {
            waves: vec![canary],
            ..Policy::default()
        };
        let mut nodes = [node("n1", "v1"), node("n2", "v1")];
        let why = check(&policy, &nodes).unwrap_err().to_string();
        assert!(why.contains("wave 1 selects no machine"), "{why}");
        let label = ("canary".to_owned(), "yes".to_owned());
        nodes[1].labels.extend([label]);
        assert_eq!(check(&policy, &nodes), Ok(()));
    }

    #[test]
    fn a_wave_that_has_gone_past_a_release_keeps_nobody_from_it() {
        let canaries = Wave {
            select: Select::Label("canary=yes".to_owned()),
            soak: Seconds(0),
        };
        let policy = Policy {
            waves: vec![canaries],
            ..Policy::default()
        };
        let canary = |version: &str| {
            let mut canary = node("n2", version);
            canary
                .labels
                .extend([("canary".to_owned(), "yes".to_owned())]);
            canary
        };
        let version = "v0.2.0".parse().unwrap();
        let old = node("n1", "v0.1.0");
        for (second, is_part, waves) in [
            (canary("v0.3.0"), false, 0),
            // It has not been there, or cannot tell.
            (canary("v0.1.0"), false, 1),
            (canary("latest"), false, 1),
            (node("n2", "v0.3.0"), false, 1),
            (canary("v0.1.0"), true, 1),
        ] {
            let nodes = [old.clone(), second];
            let is_part = |node: &NodeView| is_part || node.name == "n1";
            let fits = fitting(&policy, &version, &nodes, is_part);
            assert_eq!(fits.waves.len(), waves, "{nodes:?}");
            let parts: Vec<NodeView> = nodes.iter().filter(|it| is_part(it)).cloned().collect();
            let can_begin = waves == 0 || parts.len() == 2;
            assert_eq!(check(&fits, &parts).is_ok(), can_begin, "{nodes:?}");
        }
    }

    #[test]
    fn an_approval_is_for_one_version() {
        let spec = |approved: u32| -> PoolSpec {
            let spec = json!({"nodeSelector": {}, "image": "r/i:v2", "approvedWaves": approved});
            serde_json::from_value(spec).unwrap()
        };
        let mut old = Rollout::default();
        assert_eq!(
            approvals(&spec(2), &mut old),
            2,
            "as an older operator began it"
        );
        let mut next = Rollout {
            approved_before: 2,
            ..Rollout::default()
        };
        for (field, approved) in [(2, 0), (3, 1), (0, 0), (1, 1)] {
            assert_eq!(approvals(&spec(field), &mut next), approved, "{field}");
        }
    }

    #[test]
    fn what_is_approved_while_a_rollout_is_set_aside_is_for_the_other_one() {
        let mut aside = record(&[node("n1", "v1")]);
        aside.approved = 1;
        let spec = json!({"nodeSelector": {}, "image": "r/i:v2", "approvedWaves": 5});
        let mut spec: PoolSpec = serde_json::from_value(spec).unwrap();
        let mut rollout = Rollout {
            approved_before: approved_before_it_goes_on(&spec, &aside),
            ..Rollout::default()
        };
        assert_eq!(approvals(&spec, &mut rollout), 1);
        spec.approved_waves = 6;
        assert_eq!(approvals(&spec, &mut rollout), 2);
    }

    #[test]
    fn nothing_new_begins_with_an_image_that_the_pool_names_no_more() {
        let mut record = record(&[node("n1", "v1"), node("n2", "v1")]);
        let policy = Policy::default();
        let wishes = wishes(&policy, false, false);
        assert!(take_in(&mut record, &wishes, |_| false));
        assert_eq!(record.paused.as_deref(), Some(OTHER_IMAGE));
        assert_eq!(record.approved, 0);
        // A person's way back goes on.
        record.phase = Phase::GoingBack { why: String::new() };
        take_in(&mut record, &wishes, |_| false);
        assert_eq!(record.paused, None);
    }
}
