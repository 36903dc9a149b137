//! Which release of a channel the nodes of a pool go to next. Pure.
//!
//! A release may follow some versions alone. So a pool goes to the newest release in as many rollouts as its nodes need: the node with the oldest
//! version that can go on says which one is next, as it would choose by itself. Nodes that may not go there are no part of that rollout.

use instar_values::{Version, VersionRanges};

use crate::api::{ChannelRelease, ChannelStatus};
use crate::node::NodeView;

/// A release that nodes may have to go over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) version: Version,
    pub(crate) image: String,
    upgrades_from: Option<VersionRanges>,
}

/// The releases in the status of a channel, the newest first.
pub(crate) fn steps(status: &ChannelStatus) -> Vec<Step> {
    let steps: Vec<Step> = status.releases.iter().filter_map(step).collect();
    if !steps.is_empty() {
        return steps;
    }
    // As an operator wrote it that knew the newest release alone.
    let newest = status.version.clone().zip(status.image.clone());
    let newest = newest.map(|(version, image)| ChannelRelease {
        version,
        image,
        upgrades_from: None,
    });
    newest.iter().filter_map(step).collect()
}

/// None if this operator cannot read it: it goes nowhere that it does not understand.
fn step(release: &ChannelRelease) -> Option<Step> {
    let ranges = release.upgrades_from.as_ref().map(|text| text.parse());
    Some(Step {
        version: release.version.parse().ok()?,
        image: release.image.clone(),
        upgrades_from: ranges.transpose().ok()?,
    })
}

fn version(node: &NodeView) -> Option<Version> {
    node.version.as_ref()?.parse().ok()
}

impl Step {
    fn may_follow(&self, running: &Version) -> bool {
        let ranges = self.upgrades_from.as_ref();
        ranges.is_none_or(|ranges| ranges.contains(running))
    }

    /// Whether a node may be part of a rollout of this release: it runs it, or may go to it.
    pub(crate) fn is_for(&self, node: &NodeView) -> bool {
        match version(node) {
            Some(running) if running < self.version => self.may_follow(&running),
            Some(running) => running == self.version,
            None => self.upgrades_from.is_none(),
        }
    }
}

/// Chooses the release that comes next. `has_failed`: whether a node has failed at a version, and the others went on without it.
///
/// # Errors
/// Nothing can be done but for a node that no release may follow; says which.
pub(crate) fn next<'a>(
    steps: &'a [Step],
    nodes: &[NodeView],
    has_failed: impl Fn(&NodeView, &Version) -> bool,
) -> Result<Option<&'a Step>, String> {
    let Some(newest) = steps.first() else {
        return Ok(None);
    };
    let mut oldest: Option<(Version, &Step)> = None;
    let mut stranded = None;
    let nodes = nodes.iter().filter(|node| node.hold.is_none());
    for (node, running) in nodes.filter_map(|node| Some((node, version(node)?))) {
        if running >= newest.version {
            continue;
        }
        let mut newer = steps.iter().filter(|step| step.version > running);
        match newer.find(|step| step.may_follow(&running)) {
            None => stranded = stranded.or(Some((node, running))),
            Some(step) if has_failed(node, &step.version) => {}
            Some(step) => {
                if oldest.as_ref().is_none_or(|(other, _)| running < *other) {
                    oldest = Some((running, step));
                }
            }
        }
    }
    match (oldest, stranded) {
        (Some((_, step)), _) => Ok(Some(step)),
        (None, Some((node, running))) => {
            let ranges = newest.upgrades_from.as_ref().map(ToString::to_string);
            Err(format!(
                "node {} runs {running}, which no release may follow: {} follows {}",
                node.name,
                newest.version,
                ranges.unwrap_or_default()
            ))
        }
        (None, None) => Ok(Some(newest)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn status(releases: &[(&str, Option<&str>)]) -> ChannelStatus {
        let releases = releases.iter().map(|(version, from)| ChannelRelease {
            version: (*version).to_owned(),
            image: format!("r/i:{version}"),
            upgrades_from: from.map(str::to_owned),
        });
        ChannelStatus {
            releases: releases.collect(),
            ..ChannelStatus::default()
        }
    }

    fn node(name: &str, version: &str) -> NodeView {
        let labels = json!({crate::api::VERSION_LABEL: version});
        let object = json!({"metadata": {"name": name, "labels": labels}});
        NodeView::of(&serde_json::from_value(object).unwrap())
    }

    /// The nodes n0, n1, ... with these versions; one with a `!` is held, one with a `-` has failed.
    fn chosen(steps: &[Step], versions: &str) -> String {
        let words = versions.split(' ').enumerate();
        let nodes = words.map(|(number, word)| NodeView {
            hold: word.contains('!').then(|| "mine".to_owned()),
            ..node(
                &format!("n{number}{word}"),
                word.trim_end_matches(['!', '-']),
            )
        });
        let nodes: Vec<NodeView> = nodes.collect();
        let has_failed = |node: &NodeView, _: &Version| node.name.contains('-');
        match next(steps, &nodes, has_failed) {
            Ok(step) => step.map_or("none".to_owned(), |step| step.version.to_string()),
            Err(why) => why,
        }
    }

    #[test]
    fn nodes_go_over_the_releases_that_they_need() {
        let steps = steps(&status(&[("v0.3.0", Some(">=v0.2.0")), ("v0.2.0", None)]));
        for (nodes, expected) in [
            ("v0.1.0 v0.1.0", "v0.2.0"),
            ("v0.2.0 v0.1.0", "v0.2.0"),
            ("v0.2.0 v0.2.0", "v0.3.0"),
            ("v0.3.0 v0.2.0", "v0.3.0"),
            ("v0.3.0 v0.3.0", "v0.3.0"),
            ("v0.4.0", "v0.3.0"),
            // The others need not wait for these.
            ("v0.1.0! v0.2.0", "v0.3.0"),
            ("v0.1.0- v0.2.0", "v0.3.0"),
            ("latest v0.2.0", "v0.3.0"),
        ] {
            assert_eq!(chosen(&steps, nodes), expected, "{nodes}");
        }
        assert_eq!(chosen(&[], "v0.1.0"), "none");
    }

    #[test]
    fn a_node_without_a_way_is_named_when_the_others_are_done() {
        let steps = steps(&status(&[("v0.3.0", Some(">=v0.2.0"))]));
        assert_eq!(chosen(&steps, "v0.1.0 v0.2.0"), "v0.3.0");
        let why = chosen(&steps, "v0.1.0 v0.3.0");
        assert!(
            why.contains("runs v0.1.0, which no release may follow"),
            "{why}"
        );
        assert!(why.contains("v0.3.0 follows >=v0.2.0"), "{why}");
    }

    #[test]
    fn only_nodes_that_may_go_there_are_part_of_a_rollout() {
        let steps = steps(&status(&[("v0.3.0", Some(">=v0.2.0")), ("v0.2.0", None)]));
        for (version, third, second) in [
            ("v0.1.0", false, true),
            ("v0.2.0", true, true),
            ("v0.3.0", true, false),
            ("v0.4.0", false, false),
            ("latest", false, true),
        ] {
            let node = node("n1", version);
            let parts = [steps[0].is_for(&node), steps[1].is_for(&node)];
            assert_eq!(parts, [third, second], "{version}");
        }
    }

    #[test]
    fn a_status_of_before_has_the_newest_release_alone() {
        let status = ChannelStatus {
            version: Some("v0.2.0".to_owned()),
            image: Some("r/i:v0.2.0".to_owned()),
            ..ChannelStatus::default()
        };
        assert_eq!(chosen(&steps(&status), "v0.1.0"), "v0.2.0");
    }
}
