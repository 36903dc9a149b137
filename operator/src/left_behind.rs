//! Nodes that failed at a release of a channel, and that the others went on without. Pure.
//!
//! A rollout of the next release has no part for such a node, so its record does not tell of the failure. This memory does: without it the
//! release at which the node failed would be the next one again, and no later release would ever reach the others.
//!
//! ```text
//!  failed, and the next rollout goes on without it ─► left behind ─► forgotten: it runs that version or a newer one, is no node of the pool any
//!                                                       ▲    │       more, or is part of another rollout, whose record tells of it
//!                  the node refuses the image even so   │    ▼ a person says `retry`
//!                                                     tries again
//! ```

use instar_rollout::{MachineName, Moment, Phase, Record, Release, Step};
use instar_values::Version;

use crate::api::LeftBehind;
use crate::node::NodeView;

/// Nodes that are remembered: the list is in the pool's object, which has a size. The oldest failures are forgotten first.
const MOST: usize = 256;
/// The longest reason that is remembered, in bytes.
const LONGEST: usize = 512;

/// The nodes that are left behind once a rollout of a version begins: those of before and those that failed in the last one, without the nodes of
/// the new one.
pub(crate) fn when_begins(
    known: &[LeftBehind],
    last: Option<&Record>,
    begun: &Record,
) -> Vec<LeftBehind> {
    // A rollout that came to another end has left nobody behind: it was stopped.
    let last = last.filter(|record| record.phase == Phase::Done);
    let failed = last.into_iter().flat_map(failed);
    let known = known.iter().cloned();
    let mut left: Vec<LeftBehind> = Vec::new();
    for one in known.chain(failed) {
        left.retain(|other| other.node != one.node);
        left.push(one);
    }
    left.retain(|one| !begun.machines.contains_key(&one.machine()));
    left.sort_by_key(|one| one.failed_at);
    left.split_off(left.len().saturating_sub(MOST))
}

/// The nodes that failed in a rollout.
fn failed(record: &Record) -> impl Iterator<Item = LeftBehind> {
    let target = &record.target;
    record.machines.iter().filter_map(|(name, entry)| {
        let Step::Failed { at, why } = &entry.step else {
            return None;
        };
        let mut why = why.clone();
        why.truncate(why.floor_char_boundary(LONGEST));
        Some(LeftBehind {
            node: name.as_str().to_owned(),
            version: target.version.clone(),
            digest: target.digest.map(|digest| digest.to_string()),
            failed_at: i64::try_from(at.0).unwrap_or(i64::MAX),
            why,
            tries_again: false,
        })
    })
}

/// Whether a node has failed at this version, and is not to try again.
pub(crate) fn has_failed(known: &[LeftBehind], node: &NodeView, version: &Version) -> bool {
    let mut own = known.iter().filter(|one| one.node == node.name);
    own.any(|one| !one.tries_again && one.version.parse().as_ref() == Ok(version))
}

/// The failure of a node at this very release, for the record of a rollout that brings it again.
pub(crate) fn failure(known: &[LeftBehind], name: &MachineName, target: &Release) -> Option<Step> {
    let mut own = known.iter().filter(|one| one.node == name.as_str());
    let failure = own.find(|one| !one.tries_again && one.is_of(target))?;
    Some(Step::Failed {
        at: Moment(u64::try_from(failure.failed_at).unwrap_or_default()),
        why: failure.why.clone(),
    })
}

/// Forgets nodes that run the version or a newer one by now, and those that are none of the pool any more.
pub(crate) fn forget(known: &mut Vec<LeftBehind>, nodes: &[NodeView]) {
    known.retain(|one| {
        let mut nodes = nodes.iter();
        let node = nodes.find(|node| node.name == one.node);
        node.is_some_and(|node| !one.is_reached_by(node))
    });
}

/// The nodes try again, as a person asked for. Returns whether there is one.
pub(crate) fn try_again(known: &mut [LeftBehind]) -> bool {
    for one in &mut *known {
        one.tries_again = true;
    }
    !known.is_empty()
}

/// The nodes refuse the image: they do not try again, and the others are not kept from the releases after it.
pub(crate) fn give_up(known: &mut [LeftBehind], nodes: &[NodeView]) {
    let refuse = known
        .iter_mut()
        .filter(|one| nodes.iter().any(|node| node.name == one.node));
    for one in refuse {
        one.tries_again = false;
    }
}

/// The nodes in one sentence; none without one.
pub(crate) fn told(known: &[LeftBehind]) -> Option<String> {
    let left: Vec<&LeftBehind> = known.iter().filter(|one| !one.tries_again).collect();
    let first = left.first()?;
    let others = match left.len() - 1 {
        0 => String::new(),
        others => format!(", and {others} more"),
    };
    let (node, version, why) = (&first.node, &first.version, &first.why);
    Some(format!(
        "left behind: {node}, which failed at {version}: {why}{others}"
    ))
}

impl LeftBehind {
    fn machine(&self) -> MachineName {
        MachineName::from(self.node.as_str())
    }

    /// The digest is the identity, as of a [`Release`]; where one of both has none, the version has to do.
    fn is_of(&self, release: &Release) -> bool {
        match (&self.digest, &release.digest) {
            (Some(digest), Some(other)) => *digest == other.to_string(),
            _ => self.version == release.version,
        }
    }

    /// Whether the node runs this version or a newer one.
    fn is_reached_by(&self, node: &NodeView) -> bool {
        let version = |text: &String| text.parse::<Version>().ok();
        let runs = node.version.as_ref().and_then(version);
        let failed = version(&self.version);
        runs.zip(failed)
            .is_some_and(|(runs, failed)| runs >= failed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Member, Policy};
    use serde_json::json;

    use super::*;

    fn release(version: &str) -> Release {
        Release {
            version: version.to_owned(),
            digest: None,
            image: Some(format!("r/i:{version}")),
        }
    }

    /// A rollout that is done: nodes with a `-` have failed.
    fn done(version: &str, nodes: &[&str]) -> Record {
        let members = nodes.iter().map(|node| {
            let name = MachineName::from(node.trim_end_matches('-'));
            (name, Member::default())
        });
        let policies = vec![Policy::default()];
        let mut record = Record::begin(release(version), policies, members.collect()).unwrap();
        record.phase = Phase::Done;
        for node in nodes {
            let (at, name) = (Moment(7), MachineName::from(node.trim_end_matches('-')));
            record.machines.get_mut(&name).unwrap().step = match node.ends_with('-') {
                true => Step::Failed {
                    at,
                    why: "it burns".to_owned(),
                },
                false => Step::Updated { at },
            };
        }
        record
    }

    fn node(name: &str, version: &str) -> NodeView {
        let labels = json!({crate::api::VERSION_LABEL: version});
        let object = json!({"metadata": {"name": name, "labels": labels}});
        NodeView::of(&serde_json::from_value(object).unwrap())
    }

    fn names(known: &[LeftBehind]) -> Vec<String> {
        let names = known.iter();
        let names = names.map(|one| format!("{} {}", one.node, one.version));
        names.collect()
    }

    fn is_at(known: &[LeftBehind], version: &str) -> bool {
        has_failed(known, &node("n1", "v0.1.0"), &version.parse().unwrap())
    }

    #[test]
    fn a_node_without_a_part_in_the_next_rollout_is_remembered_over_it() {
        let first = done("v0.2.0", &["n1-", "n2", "n3"]);
        let second = done("v0.3.0", &["n2", "n3"]);
        let known = when_begins(&[], Some(&first), &second);
        assert_eq!(names(&known), ["n1 v0.2.0"]);
        assert!(is_at(&known, "v0.2.0") && !is_at(&known, "v0.3.0"));
        // The record of the rollout after that tells of nothing but its own failures.
        let third = done("v0.4.0", &["n3"]);
        let second = done("v0.3.0", &["n2-", "n3"]);
        let known = when_begins(&known, Some(&second), &third);
        assert_eq!(names(&known), ["n1 v0.2.0", "n2 v0.3.0"]);
        // Each node of the next rollout has a record of its own.
        let all = done("v0.5.0", &["n1", "n2", "n3"]);
        assert!(when_begins(&known, Some(&third), &all).is_empty());
    }

    #[test]
    fn a_rollout_that_was_stopped_has_left_nobody_behind() {
        let mut first = done("v0.2.0", &["n1-", "n2"]);
        first.phase = Phase::Aborted;
        let next = done("v0.3.0", &["n2"]);
        assert!(when_begins(&[], Some(&first), &next).is_empty());
    }

    #[test]
    fn a_failure_is_forgotten_with_the_version_or_with_the_node() {
        let first = done("v0.2.0", &["n1-", "n2"]);
        let known = when_begins(&[], Some(&first), &done("v0.3.0", &["n2"]));
        for (nodes, stays) in [
            (vec![node("n1", "v0.1.0"), node("n2", "v0.3.0")], true),
            (vec![node("n1", "latest")], true),
            (vec![node("n1", "v0.2.0")], false),
            (vec![node("n1", "v0.2.1")], false),
            (vec![node("n2", "v0.3.0")], false),
        ] {
            let mut known = known.clone();
            forget(&mut known, &nodes);
            assert_eq!(!known.is_empty(), stays, "{nodes:?}");
        }
    }

    #[test]
    fn a_node_tries_again_when_a_person_says_so_until_it_refuses() {
        assert!(!try_again(&mut []));
        let first = done("v0.2.0", &["n1-", "n2"]);
        let mut known = when_begins(&[], Some(&first), &done("v0.3.0", &["n2"]));
        let (name, release) = (MachineName::from("n1"), release("v0.2.0"));
        let failed = first.machines[&name].step.clone();
        assert_eq!(failure(&known, &name, &release), Some(failed.clone()));
        assert!(try_again(&mut known));
        assert!(!is_at(&known, "v0.2.0"));
        assert_eq!(failure(&known, &name, &release), None);
        give_up(&mut known, &[node("n2", "v0.3.0")]);
        assert!(!is_at(&known, "v0.2.0"));
        give_up(&mut known, &[node("n1", "v0.1.0")]);
        assert!(is_at(&known, "v0.2.0"));
        assert_eq!(failure(&known, &name, &release), Some(failed));
    }

    #[test]
    fn the_list_has_a_bound() {
        let names: Vec<String> = (0..MOST + 9).map(|number| format!("n{number}-")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut first = done("v0.2.0", &names);
        let last = MachineName::from(format!("n{}", MOST + 8));
        first.machines.get_mut(&last).unwrap().step = Step::Failed {
            at: Moment(8),
            why: "ü".repeat(LONGEST),
        };
        let known = when_begins(&[], Some(&first), &done("v0.3.0", &["other"]));
        assert_eq!(known.len(), MOST);
        let newest = known.last().unwrap();
        assert_eq!(newest.node, last.as_str());
        assert!(newest.why.len() <= LONGEST);
    }
}
