//! From the records of a pool to what the page shows of it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use instar_rollout::Record;
use instar_rollout_page::{MachineView, Seen, SeenMachine, View};
use kube::ResourceExt as _;
use kube::core::{Selector, SelectorExt as _};

use crate::api::{Kind, NodeUpgrade, Pool, PoolStatus};
use crate::node::NodeView;
use crate::record_store;

/// The step of a node that belongs to the pool and is no part of its rollout.
const OUTSIDE: &str = "outside";
/// The step of a node of a pool that has no rollout yet.
const WAITING: &str = "waiting";

/// The view of a pool: its rollout, and nodes that belong to it beside that.
pub(super) fn view(
    pool: &Pool,
    nodes: &BTreeMap<String, NodeView>,
    upgrades: &[&NodeUpgrade],
) -> View {
    let status = pool.status.clone().unwrap_or_default();
    let mut view = match record_store::record(&status) {
        Ok(Some(record)) => of_rollout(pool, &status, &record, nodes, upgrades),
        Ok(None) => without_rollout(pool, &status, status.message.clone()),
        Err(error) => without_rollout(pool, &status, Some(error.to_string())),
    };
    let name = pool.name_any();
    let beside = beside(pool, nodes, &view);
    view.machines.extend(beside);
    for machine in &mut view.machines {
        let node = nodes.get(&machine.name);
        machine.hold = node.and_then(|node| node.hold.clone());
    }
    View {
        pool: name,
        // A hold is an annotation of the node, with a rollout and without.
        holds: true,
        ..view
    }
}

fn of_rollout(
    pool: &Pool,
    status: &PoolStatus,
    record: &Record,
    nodes: &BTreeMap<String, NodeView>,
    upgrades: &[&NodeUpgrade],
) -> View {
    let rollout = status.rollout.clone().unwrap_or_default();
    // One look-up for each node: a search in the list for each of thousands would stop this thread, which renews the lease.
    let own = upgrades
        .iter()
        .filter(|it| it.spec.rollout == rollout.number);
    let own: BTreeMap<&str, &NodeUpgrade> = own.map(|it| (it.spec.node.as_str(), *it)).collect();
    let seen = record.machines.keys().map(|name| {
        let node = nodes.get(name.as_str());
        let upgrade = own.get(name.as_str()).copied();
        (name.clone(), seen(rollout.kind(), node, upgrade))
    });
    let seen = Seen {
        machines: seen.collect(),
    };
    // Some replica of the operator holds the lease, or takes it within moments.
    let image = match rollout.kind() {
        Kind::Version => rollout.image.as_str(),
        Kind::Config => "",
    };
    let view = View::of(&pool.name_any(), image, record, &seen, true);
    match invalid(status) {
        Some(why) => View { why, ..view },
        None => view,
    }
}

/// A node's object tells its version, and nothing of its config.
fn seen(kind: Kind, node: Option<&NodeView>, upgrade: Option<&NodeUpgrade>) -> SeenMachine {
    let told = upgrade.and_then(|upgrade| upgrade.status.as_ref());
    let unready = node.and_then(|node| node.unready.clone());
    let told = told.map(|status| status.message.clone());
    SeenMachine {
        running: match kind {
            Kind::Version => node.and_then(|node| node.version.clone()),
            Kind::Config => None,
        },
        reason: told.or(unready).unwrap_or_default(),
    }
}

/// Why the pool cannot be driven.
fn invalid(status: &PoolStatus) -> Option<String> {
    let mut conditions = status.conditions.iter();
    let invalid = conditions.find(|it| it.type_ == "Valid" && it.status == "False")?;
    Some(invalid.message.clone())
}

fn without_rollout(pool: &Pool, status: &PoolStatus, why: Option<String>) -> View {
    View {
        name: pool.name_any(),
        pool: String::new(),
        version: String::new(),
        image: wanted(pool),
        phase: match invalid(status) {
            Some(_) => "invalid",
            None => WAITING,
        },
        why: why.unwrap_or_default(),
        paused: pool.spec.paused.then(|| "spec.paused is set".to_owned()),
        ended: false,
        holds: true,
        driven: true,
        approved: None,
        machines: Vec::new(),
    }
}

/// The channel or the image that the pool names; empty if it names none.
fn wanted(pool: &Pool) -> String {
    let spec = &pool.spec;
    match (&spec.channel, &spec.image, &spec.version) {
        (Some(channel), ..) => format!("channel {channel}"),
        (None, Some(image), Some(version)) => format!("{image}:{version}"),
        (None, Some(image), None) => image.clone(),
        (None, None, _) => String::new(),
    }
}

/// The nodes that the pool selects and that are not shown yet.
fn beside(pool: &Pool, nodes: &BTreeMap<String, NodeView>, shown: &View) -> Vec<MachineView> {
    let Ok(selector) = Selector::try_from(pool.spec.node_selector.clone()) else {
        return Vec::new();
    };
    let has_rollout = !shown.version.is_empty();
    let (step, reason) = match has_rollout {
        true => (OUTSIDE, "it is no part of this rollout"),
        false => (WAITING, ""),
    };
    let shown = shown.machines.iter();
    let shown: BTreeSet<&str> = shown.map(|machine| machine.name.as_str()).collect();
    let nodes = nodes
        .values()
        .filter(|node| !shown.contains(node.name.as_str()) && selector.matches(&node.labels));
    let machines = nodes.map(|node| MachineView {
        name: node.name.clone(),
        pool: String::new(),
        running: node.version.clone(),
        before: None,
        step: step.to_owned(),
        since: None,
        reason: node.unready.clone().unwrap_or_else(|| reason.to_owned()),
        hold: None,
    });
    machines.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{MachineName, Member, Moment, Policy, Release, Step};
    use serde_json::{Value, json};

    use super::*;
    use crate::api::HOLD;

    fn record() -> Record {
        let target = Release {
            version: "v2".to_owned(),
            digest: None,
            image: None,
        };
        let members = ["n1", "n2"].map(|name| (MachineName::from(name), Member::default()));
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        let first = record.machines.get_mut(&MachineName::from("n1")).unwrap();
        first.step = Step::Updated { at: Moment(7) };
        record
    }

    fn pool(spec: Value, status: Value) -> Pool {
        let mut object = json!({
            "apiVersion": "instar.dev/v1alpha1", "kind": "Pool", "metadata": {"name": "lab"},
            "spec": {"nodeSelector": {"matchLabels": {"rack": "r1"}}, "image": "r/i:v2"}, "status": status,
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn rolling() -> Pool {
        let record = serde_json::to_value(record()).unwrap();
        let rollout = json!({"number": 3, "image": "r/i:v2", "record": record});
        pool(json!({}), json!({ "rollout": rollout }))
    }

    fn nodes(of: &[(&str, &str, Value)]) -> BTreeMap<String, NodeView> {
        let views = of.iter().map(|(name, version, annotations)| {
            let object = json!({
                "metadata": {
                    "name": name, "annotations": annotations,
                    "labels": {"rack": "r1", crate::api::VERSION_LABEL: version},
                },
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            let view = NodeView::of(&serde_json::from_value(object).unwrap());
            (view.name.clone(), view)
        });
        views.collect()
    }

    fn upgrade(node: &str, rollout: u32, message: &str) -> NodeUpgrade {
        let object = json!({
            "apiVersion": "instar.dev/v1alpha1", "kind": "NodeUpgrade", "metadata": {"name": node},
            "spec": {"pool": "lab", "node": node, "rollout": rollout, "to": "v2"},
            "status": {"phase": "Waiting", "reason": "Full", "message": message},
        });
        serde_json::from_value(object).unwrap()
    }

    /// Each machine as `name step running reason hold`.
    fn lines(view: &View) -> Vec<String> {
        let machines = view.machines.iter().map(|it| {
            let running = it.running.as_deref().unwrap_or("-");
            let hold = it.hold.as_deref().unwrap_or("-");
            format!("{} {} {running} [{}] {hold}", it.name, it.step, it.reason)
        });
        machines.collect()
    }

    #[test]
    fn a_rollout_shows_its_nodes_and_what_they_wait_for() {
        let nodes = nodes(&[
            ("n1", "v2", json!({})),
            ("n2", "v1", json!({HOLD: "being repaired"})),
            ("n3", "v1", json!({})),
        ]);
        let old = upgrade("n2", 2, "of another rollout");
        let new = upgrade("n2", 3, "waits for n1");
        let view = view(&rolling(), &nodes, &[&old, &new]);
        assert_eq!(
            lines(&view),
            [
                "n1 updated v2 [] -",
                "n2 waiting v1 [waits for n1] being repaired",
                "n3 outside v1 [it is no part of this rollout] -",
            ]
        );
        assert_eq!((view.name.as_str(), view.pool.as_str()), ("lab", "lab"));
        assert_eq!((view.version.as_str(), view.phase), ("v2", "rolling"));
    }

    #[test]
    fn a_rollout_of_configs_shows_no_image() {
        let mut config = rolling();
        let rollout = config.status.as_mut().unwrap().rollout.as_mut().unwrap();
        rollout.config_patches = vec!["{}".to_owned()];
        let nodes = nodes(&[("n1", "v2", json!({})), ("n2", "v2", json!({}))]);
        let view = view(&config, &nodes, &[]);
        assert_eq!(lines(&view), ["n1 updated - [] -", "n2 waiting - [] -"]);
        assert_eq!(view.image, "");
    }

    #[test]
    fn a_pool_without_a_rollout_says_what_it_waits_for() {
        let status = json!({"phase": "Waiting", "message": "no node is ready"});
        let view = view(
            &pool(json!({"paused": true}), status),
            &nodes(&[("n1", "v1", json!({}))]),
            &[],
        );
        assert_eq!(lines(&view), ["n1 waiting v1 [] -"]);
        assert_eq!(
            (view.phase, view.why.as_str()),
            ("waiting", "no node is ready")
        );
        assert_eq!((view.version.as_str(), view.image.as_str()), ("", "r/i:v2"));
        assert!(view.paused.is_some() && !view.ended);
    }

    #[test]
    fn a_pool_that_is_not_valid_says_why_with_a_rollout_and_without() {
        let bad = json!([{
            "type": "Valid", "status": "False", "reason": "NodeConflict", "message": "node n1 belongs to pool b as well",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }]);
        let message = "node n1 belongs to pool b as well";
        let status = json!({"phase": "Invalid", "message": message, "conditions": bad});
        let without = view(&pool(json!({}), status), &nodes(&[]), &[]);
        assert_eq!((without.phase, without.why.as_str()), ("invalid", message));
        let mut with = rolling();
        with.status.as_mut().unwrap().conditions = serde_json::from_value(bad).unwrap();
        let with = view(&with, &nodes(&[]), &[]);
        assert_eq!((with.phase, with.why.as_str()), ("rolling", message));
    }

    #[test]
    fn a_record_of_another_version_is_no_blank_page() {
        let status = json!({"rollout": {"number": 1, "image": "r/i:v2", "record": {"format": 99}}});
        let view = view(&pool(json!({}), status), &nodes(&[]), &[]);
        assert!(
            view.why.contains("the record cannot be read"),
            "{}",
            view.why
        );
    }
}
