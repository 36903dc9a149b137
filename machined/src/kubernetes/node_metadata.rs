//! Labels and annotations that the node keeps at its own object in the cluster: those of the config, and what it says about itself.
//!
//! kubelet gives an object its labels when it makes it, and no others later. The node itself keeps them right from then on: it sets what
//! differs, and removes what it has set before and the config names no more. Which ones it has set stands at the object as well, in
//! annotations: so it survives a machine that is installed anew, and labels that people or controllers set are left alone.
//!
//! Pure: the object in, the change out. `sequences/kubernetes.rs` sends it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::kubelet::may_label_itself;
use crate::config::NodeSettings;

/// The annotations that name the labels and annotations that the node has set, as JSON lists.
const OWNED_LABELS: &str = "instar.dev/owned-labels";
const OWNED_ANNOTATIONS: &str = "instar.dev/owned-annotations";
/// The label that says how the node was started.
const MODE: &str = "instar.dev/mode";
pub(super) const VERSION: &str = "instar.dev/version";
const CHANNEL: &str = "instar.dev/channel";
/// Limit on the value of a label, of Kubernetes.
const LONGEST_VALUE: usize = 63;

/// The way in which the machine was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// From its disk.
    Installed,
    /// From elsewhere, with its data on a disk.
    Live,
    /// From elsewhere, with all of it in memory.
    Diskless,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::Installed => "installed",
            Mode::Live => "live",
            Mode::Diskless => "diskless",
        }
    }
}

/// The labels and annotations that the node's object is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeMetadata {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl NodeMetadata {
    /// The labels of the config that a node may give itself, and those about itself.
    pub fn of(settings: &NodeSettings, mode: Mode, version: &str, channel: Option<&str>) -> Self {
        let labels = settings.labels.clone().into_iter();
        let mut labels: BTreeMap<_, _> = labels
            .filter(|(label, _)| may_label_itself(label))
            .collect();
        labels.insert(MODE.to_owned(), mode.word().to_owned());
        labels.insert(VERSION.to_owned(), label_value(version));
        if let Some(channel) = channel {
            labels.insert(CHANNEL.to_owned(), label_value(channel));
        }
        NodeMetadata {
            labels,
            annotations: settings.annotations.clone(),
        }
    }

    /// Returns the merge patch that makes an object right; `None` if it is.
    pub fn change_of(&self, object: &Value) -> Option<Value> {
        let metadata = &object["metadata"];
        let labels = difference(
            &metadata["labels"],
            &owned(metadata, OWNED_LABELS),
            &self.labels,
        );
        let mut annotations = self.annotations.clone();
        annotations.insert(OWNED_LABELS.to_owned(), list(&self.labels));
        annotations.insert(OWNED_ANNOTATIONS.to_owned(), list(&self.annotations));
        let owned = owned(metadata, OWNED_ANNOTATIONS);
        let annotations = difference(&metadata["annotations"], &owned, &annotations);
        if labels.is_empty() && annotations.is_empty() {
            return None;
        }
        Some(json!({"metadata": {"labels": labels, "annotations": annotations}}))
    }
}

/// Returns what has to change: the wanted values that differ, and no value for names that were set and are wanted no more.
fn difference(
    present: &Value,
    owned: &[String],
    wanted: &BTreeMap<String, String>,
) -> Map<String, Value> {
    let gone = owned
        .iter()
        .filter(|name| !wanted.contains_key(*name) && present.get(*name).is_some())
        .map(|name| (name.clone(), Value::Null));
    let differing = wanted
        .iter()
        .filter(|(name, value)| present.get(*name).and_then(Value::as_str) != Some(value))
        .map(|(name, value)| (name.clone(), json!(value)));
    gone.chain(differing).collect()
}

/// Reads a list of names that were set. One that somebody has broken names none.
fn owned(metadata: &Value, annotation: &str) -> Vec<String> {
    let list = metadata["annotations"][annotation].as_str();
    list.and_then(|list| serde_json::from_str(list).ok())
        .unwrap_or_default()
}

fn list(names: &BTreeMap<String, String>) -> String {
    json!(names.keys().collect::<Vec<_>>()).to_string()
}

/// Writes a version as the value of a label: letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn label_value(version: &str) -> String {
    let allowed = |character: char| match character {
        '-' | '_' | '.' => character,
        _ if character.is_ascii_alphanumeric() => character,
        _ => '-',
    };
    let value: String = version.chars().map(allowed).take(LONGEST_VALUE).collect();
    value
        .trim_matches(|edge: char| !edge.is_ascii_alphanumeric())
        .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::a_node::kubernetes;
    use super::*;

    fn metadata() -> NodeMetadata {
        let mut settings = kubernetes().node;
        settings.annotations = [("rack".to_owned(), "7 b".to_owned())].into();
        NodeMetadata::of(&settings, Mode::Installed, "v0.2.0+a", Some("stable"))
    }

    /// The object that an API server makes by a merge patch, for two levels.
    fn patched(mut object: Value, patch: &Value) -> Value {
        for part in ["labels", "annotations"] {
            for (name, value) in patch["metadata"][part].as_object().unwrap() {
                let values = object["metadata"][part].as_object_mut().unwrap();
                match value {
                    Value::Null => drop(values.remove(name)),
                    value => drop(values.insert(name.clone(), value.clone())),
                }
            }
        }
        object
    }

    #[test]
    fn a_new_object_gets_all_that_the_node_may_set() {
        let fresh = json!({"metadata": {"labels": {"disk": "fast", "kubernetes.io/os": "linux"}, "annotations": {}}});
        let patch = metadata().change_of(&fresh).unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({"instar.dev/channel": "stable", "instar.dev/mode": "installed", "instar.dev/version": "v0.2.0-a", "node.kubernetes.io/class": "small"})
        );
        assert_eq!(patch["metadata"]["annotations"]["rack"], "7 b");
        assert_eq!(metadata().change_of(&patched(fresh, &patch)), None);
    }

    #[test]
    fn what_the_config_names_no_more_is_removed_and_other_names_stay() {
        let fresh =
            json!({"metadata": {"labels": {"of-people": "x"}, "annotations": {"volumes": "y"}}});
        let object = patched(fresh.clone(), &metadata().change_of(&fresh).unwrap());
        let without = NodeMetadata::of(&NodeSettings::default(), Mode::Live, "v0.3.0", None);
        let patch = without.change_of(&object).unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({"disk": null, "instar.dev/channel": null, "node.kubernetes.io/class": null, "instar.dev/mode": "live", "instar.dev/version": "v0.3.0"})
        );
        let after = patched(object, &patch);
        assert_eq!(after["metadata"]["labels"]["of-people"], "x");
        assert_eq!(after["metadata"]["annotations"]["volumes"], "y");
        assert_eq!(after["metadata"]["annotations"].get("rack"), None);
        assert_eq!(without.change_of(&after), None);
    }

    #[test]
    fn a_broken_list_removes_nothing() {
        let object =
            json!({"metadata": {"labels": {"disk": "slow"}, "annotations": {OWNED_LABELS: "[1"}}});
        let patch = metadata().change_of(&object).unwrap();
        assert_eq!(patch["metadata"]["labels"]["disk"], "fast");
        assert!(
            patch["metadata"]["labels"]
                .as_object()
                .unwrap()
                .values()
                .all(|value| !value.is_null())
        );
    }

    #[test]
    fn a_version_is_written_as_a_label_takes_it() {
        assert_eq!(label_value("v1.0.0-rc.1+build"), "v1.0.0-rc.1-build");
        assert_eq!(label_value("v1.0.0+"), "v1.0.0");
        assert_eq!(label_value(&"v".repeat(70)).len(), 63);
    }
}
