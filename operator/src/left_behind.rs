//! Nodes that failed at a release of a channel, and that the others went on without. Pure.
//!
//! A rollout of the next release has no part for such a node, so its record does not tell of the failure. This memory does: without it the
//! release at which the node failed would be the next one again, and no later release would ever reach the others.
//!
//! ```text
//!  failed, and the next rollout goes on without it ─► left behind ─► forgotten: it runs that version or a newer one, is no node of the pool any
//!                                                       ▲    │       more, or is part of a rollout of that version, whose record tells of it
//!                  the node refuses the image even so   │    ▼ a person says `retry`
//!                                                     tries again
//! ```
//!
//! A failure may be forgotten while the node remembers it: its object was deleted for a moment, or the pool has more nodes than it may have. Such a
//! node refuses the image when it is asked for its plan, and is left behind again, once another node runs that version or a newer one: then the
//! image itself is good.

use std::collections::BTreeMap;

use instar_rollout::{MachineName, Moment, Phase, Record, Release, Step};
use instar_values::Version;

use crate::api::LeftBehind;
use crate::node::NodeView;

/// Nodes that are remembered: as many as a pool may have, so that none of them is forgotten. A forgotten one would be asked again, and would push
/// out another one: no later release would ever reach the rest of the pool. In a larger pool the oldest failures are forgotten, and the pool says so.
pub(crate) const MOST: usize = 5000;
/// Nodes whose reasons are remembered whole: the list is in the pool's object, which has a size.
const WHOLE: usize = 256;
/// The longest reason that is remembered, in bytes.
const LONGEST: usize = 512;
/// The longest one of the other nodes.
const SHORT: usize = 48;

/// The nodes that are left behind once a rollout of a version begins: those of before and those that failed in the last one. The record of the new
/// one tells of its nodes, but of this very version alone: it may end before a node was tried, and the node would still refuse the other version.
pub(crate) fn when_begins(
    known: &[LeftBehind],
    last: Option<&Record>,
    begun: &Record,
) -> Vec<LeftBehind> {
    // A rollout that came to another end has left nobody behind: it was stopped.
    let last = last.filter(|record| record.phase == Phase::Done);
    let failed = last.into_iter().flat_map(failed);
    let known = known.iter().cloned();
    // Of two failures of a node the later one counts.
    let by_node = known.chain(failed).map(|one| (one.node.clone(), one));
    let by_node: BTreeMap<String, LeftBehind> = by_node.collect();
    let mut left: Vec<LeftBehind> = by_node.into_values().collect();
    left.retain(|one| !begun.machines.contains_key(&one.machine()) || !one.is_of(&begun.target));
    newest(left)
}

/// As many as are remembered, the oldest failures first.
fn newest(mut left: Vec<LeftBehind>) -> Vec<LeftBehind> {
    left.sort_by_key(|one| one.failed_at);
    let mut left = left.split_off(left.len().saturating_sub(MOST));
    let older = left.len().saturating_sub(WHOLE);
    for one in left.iter_mut().take(older) {
        one.why.truncate(one.why.floor_char_boundary(SHORT));
    }
    left
}

/// That failures may have been forgotten, and what follows from it; none while all are remembered.
pub(crate) fn full(known: &[LeftBehind]) -> Option<String> {
    (known.len() >= MOST).then(|| {
        format!(
            "{MOST} nodes are left behind, and no more are remembered: the oldest failures are forgotten, and those nodes are asked again. Have the \
             nodes try again (`retry`), or divide the pool"
        )
    })
}

/// A reason that is short enough to be remembered.
fn short(why: &str) -> String {
    why[..why.floor_char_boundary(LONGEST)].to_owned()
}

/// The nodes that failed in a rollout.
fn failed(record: &Record) -> impl Iterator<Item = LeftBehind> {
    let target = &record.target;
    record.machines.iter().filter_map(|(name, entry)| {
        let Step::Failed { at, why } = &entry.step else {
            return None;
        };
        Some(LeftBehind {
            node: name.as_str().to_owned(),
            version: target.version.clone(),
            digest: target.digest.map(|digest| digest.to_string()),
            failed_at: i64::try_from(at.0).unwrap_or(i64::MAX),
            why: short(why),
            tries_again: false,
        })
    })
}

/// Whether a node has failed at this version, and is not to try again.
pub(crate) fn has_failed(known: &[LeftBehind], node: &NodeView, version: &Version) -> bool {
    let mut own = known.iter().filter(|one| one.node == node.name);
    own.any(|one| !one.tries_again && one.is_at(version))
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
    let nodes = nodes.iter().map(|node| (node.name.as_str(), node));
    let nodes: BTreeMap<&str, &NodeView> = nodes.collect();
    known.retain(|one| {
        let node = nodes.get(one.node.as_str());
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

/// Nodes that refuse a release.
pub(crate) struct Refusal<'a> {
    pub(crate) version: &'a Version,
    /// The names of the nodes.
    pub(crate) by: &'a [String],
    pub(crate) why: &'a str,
    pub(crate) at: Moment,
}

/// Leaves behind nodes that refuse a release, though their failure at it is not remembered: they keep the others from no release after it.
/// `nodes`: all nodes of the pool. While none of them runs that version or a newer one, the image may be what is wrong: then nobody is left behind.
pub(crate) fn refuse(known: &mut Vec<LeftBehind>, refusal: &Refusal<'_>, nodes: &[NodeView]) {
    let version = refusal.version;
    if !nodes.iter().any(|node| is_at(node, version) == Some(true)) {
        return;
    }
    for name in refusal.by {
        let node = nodes.iter().find(|node| node.name == *name);
        let is_below = node.is_some_and(|node| is_at(node, version) == Some(false));
        let is_known = |one: &LeftBehind| one.node == *name && one.is_at(version);
        if !is_below || known.iter().any(is_known) {
            continue;
        }
        known.retain(|one| one.node != *name);
        known.push(LeftBehind {
            node: name.clone(),
            version: version.to_string(),
            digest: None,
            failed_at: i64::try_from(refusal.at.0).unwrap_or(i64::MAX),
            why: short(refusal.why),
            tries_again: false,
        });
    }
    *known = newest(std::mem::take(known));
}

/// Whether a node runs this version or a newer one; none if it does not tell.
fn is_at(node: &NodeView, version: &Version) -> Option<bool> {
    let runs: Version = node.version.as_ref()?.parse().ok()?;
    Some(runs >= *version)
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
    pub(crate) fn machine(&self) -> MachineName {
        MachineName::from(self.node.as_str())
    }

    /// Whether the node failed at this version.
    fn is_at(&self, version: &Version) -> bool {
        self.version.parse().as_ref() == Ok(version)
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
        let failed = self.version.parse();
        failed.is_ok_and(|failed| is_at(node, &failed) == Some(true))
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

    fn has_failed_at(known: &[LeftBehind], version: &str) -> bool {
        has_failed(known, &node("n1", "v0.1.0"), &version.parse().unwrap())
    }

    #[test]
    fn a_node_without_a_part_in_the_next_rollout_is_remembered_over_it() {
        let first = done("v0.2.0", &["n1-", "n2", "n3"]);
        let second = done("v0.3.0", &["n2", "n3"]);
        let known = when_begins(&[], Some(&first), &second);
        assert_eq!(names(&known), ["n1 v0.2.0"]);
        assert!(has_failed_at(&known, "v0.2.0") && !has_failed_at(&known, "v0.3.0"));
        // The record of the rollout after that tells of nothing but its own failures.
        let third = done("v0.4.0", &["n3"]);
        let second = done("v0.3.0", &["n2-", "n3"]);
        let known = when_begins(&known, Some(&second), &third);
        assert_eq!(names(&known), ["n1 v0.2.0", "n2 v0.3.0"]);
        // Each node of a rollout of that very version has a record of its own.
        let again = done("v0.3.0", &["n1", "n2"]);
        let known = when_begins(&known, Some(&third), &again);
        assert_eq!(names(&known), ["n1 v0.2.0"]);
        // A rollout of another one may be stopped before the node was tried.
        let mut all = done("v0.5.0", &["n1", "n2", "n3"]);
        all.phase = Phase::Aborted;
        let known = when_begins(&known, Some(&again), &all);
        let known = when_begins(&known, Some(&all), &done("v0.4.0", &["n2"]));
        assert!(has_failed_at(&known, "v0.2.0"));
    }

    #[test]
    fn a_node_that_refuses_what_others_run_is_left_behind_though_its_failure_was_forgotten() {
        let version = "v0.2.0".parse().unwrap();
        let by = ["n1", "n2", "n9"].map(str::to_owned);
        let refusal = Refusal {
            version: &version,
            by: &by,
            why: "it failed here before",
            at: Moment(7),
        };
        let mut known = Vec::new();
        // The image may be bad for all of them.
        refuse(
            &mut known,
            &refusal,
            &[node("n1", "v0.1.0"), node("n2", "v0.1.0")],
        );
        assert!(known.is_empty());
        let nodes = [
            node("n1", "v0.1.0"),
            node("n2", "v0.3.0"),
            node("n3", "v0.1.0"),
        ];
        refuse(&mut known, &refusal, &nodes);
        assert_eq!(names(&known), ["n1 v0.2.0"]);
        assert_eq!(known[0].why, "it failed here before");
        refuse(&mut known, &refusal, &nodes);
        assert_eq!(known.len(), 1);
        assert!(has_failed_at(&known, "v0.2.0"));
        forget(&mut known, &nodes);
        assert_eq!(known.len(), 1);
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
        assert!(!has_failed_at(&known, "v0.2.0"));
        assert_eq!(failure(&known, &name, &release), None);
        give_up(&mut known, &[node("n2", "v0.3.0")]);
        assert!(!has_failed_at(&known, "v0.2.0"));
        give_up(&mut known, &[node("n1", "v0.1.0")]);
        assert!(has_failed_at(&known, "v0.2.0"));
        assert_eq!(failure(&known, &name, &release), Some(failed));
    }

    /// A rollout in which so many nodes failed, all but the last one at the same time.
    fn failed_by(number: usize) -> (Record, MachineName) {
        let names: Vec<String> = (0..number).map(|number| format!("n{number}-")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut record = done("v0.2.0", &names);
        let last = MachineName::from(format!("n{}", number - 1));
        for (name, entry) in &mut record.machines {
            let at = Moment(if *name == last { 8 } else { 7 });
            let why = "ü".repeat(LONGEST);
            entry.step = Step::Failed { at, why };
        }
        (record, last)
    }

    #[test]
    fn more_nodes_than_have_whole_reasons_are_remembered_all() {
        let (first, last) = failed_by(WHOLE + 9);
        let known = when_begins(&[], Some(&first), &done("v0.3.0", &["other"]));
        assert_eq!(known.len(), WHOLE + 9);
        let target = release("v0.2.0");
        let mut names = first.machines.keys();
        assert!(names.all(|name| failure(&known, name, &target).is_some()));
        assert_eq!(known.last().unwrap().node, last.as_str());
        let lengths: Vec<usize> = known.iter().map(|one| one.why.len()).collect();
        assert_eq!(lengths[..9], [SHORT; 9]);
        assert_eq!(lengths[9..], [LONGEST; WHOLE]);
        assert_eq!(full(&known), None);
    }

    #[test]
    fn a_list_that_is_full_says_so() {
        let (first, last) = failed_by(MOST + 9);
        let known = when_begins(&[], Some(&first), &done("v0.3.0", &["other"]));
        assert_eq!(known.len(), MOST);
        assert_eq!(known.last().unwrap().node, last.as_str());
        assert!(full(&known).unwrap().contains("forgotten"));
        // The object of a pool has 1.5 MB.
        let size = serde_json::to_string(&known).unwrap().len();
        assert!(size < 1_200_000, "{size}");
    }
}
