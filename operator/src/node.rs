//! What a rollout needs of a node's object. A pure view; the object itself is not kept.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;

use crate::api::{API_ADDRESS, CORDONED_BY, HOLD, VERSION_LABEL};

/// A node as the cluster shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Why it is not ready; none if it is.
    pub(crate) unready: Option<String>,
    /// The version that its label has.
    pub(crate) version: Option<String>,
    /// The pool for which this operator has cordoned it.
    pub(crate) cordoned_by: Option<String>,
    /// Why a person wants it left alone.
    pub(crate) hold: Option<String>,
    /// Where its API is.
    pub(crate) address: Option<String>,
    pub(crate) boot_id: String,
}

impl NodeView {
    pub(crate) fn of(node: &Node) -> Self {
        let annotation = |name: &str| node.metadata.annotations.as_ref()?.get(name).cloned();
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        let internal = status.addresses.into_iter().flatten();
        let mut internal = internal.filter(|address| address.type_ == "InternalIP");
        let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let cordoned_by = annotation(CORDONED_BY);
        let by_a_person = (is_cordoned && cordoned_by.is_none())
            .then(|| "it is cordoned, and not by this operator".to_owned());
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            unready: unready(node),
            version: labels.get(VERSION_LABEL).cloned(),
            labels,
            hold: annotation(HOLD).or(by_a_person),
            cordoned_by,
            address: annotation(API_ADDRESS).or_else(|| internal.next().map(|it| it.address)),
            boot_id: info.boot_id,
        }
    }

    /// What an answer of the node's API is remembered with: another value makes it old.
    pub(crate) fn state(&self) -> [Option<String>; 4] {
        [
            self.unready.clone(),
            self.version.clone(),
            Some(self.boot_id.clone()),
            self.address.clone(),
        ]
    }
}

/// Why the cluster does not call the node ready.
fn unready(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let Some(ready) = conditions.find(|it| it.type_ == "Ready") else {
        return Some("the cluster has not heard of it yet".to_owned());
    };
    (ready.status != "True").then(|| {
        let message = ready.message.clone().unwrap_or_default();
        format!("the cluster does not call it ready: {message}")
    })
}

/// Drops the large parts of a node's object that nobody here reads.
pub(crate) fn trim(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.capacity = None;
        status.allocatable = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn view(metadata: Value, spec: Value, status: Value) -> NodeView {
        let node = json!({"metadata": metadata, "spec": spec, "status": status});
        NodeView::of(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn a_cordon_is_ours_only_by_its_annotation() {
        let ours = json!({"annotations": {CORDONED_BY: "lab"}});
        let held = json!({"annotations": {HOLD: "being repaired"}});
        for (metadata, unschedulable, hold, by) in [
            (json!({}), false, None, None),
            (
                json!({}),
                true,
                Some("it is cordoned, and not by this operator"),
                None,
            ),
            (ours.clone(), true, None, Some("lab")),
            // A person has uncordoned it meanwhile.
            (ours, false, None, Some("lab")),
            (held, false, Some("being repaired"), None),
        ] {
            let seen = view(
                metadata.clone(),
                json!({"unschedulable": unschedulable}),
                json!({}),
            );
            assert_eq!(seen.hold.as_deref(), hold, "{metadata} {unschedulable}");
            assert_eq!(
                seen.cordoned_by.as_deref(),
                by,
                "{metadata} {unschedulable}"
            );
        }
    }

    #[test]
    fn a_node_is_ready_when_the_cluster_says_so() {
        for (status, unready) in [
            (json!({}), Some("not heard")),
            (
                json!({"conditions": [{"type": "Ready", "status": "True"}]}),
                None,
            ),
            (
                json!({"conditions": [{"type": "Ready", "status": "Unknown", "message": "no word of kubelet"}]}),
                Some("no word of kubelet"),
            ),
        ] {
            let seen = view(json!({}), json!({}), status.clone()).unready;
            let told = seen
                .as_ref()
                .is_some_and(|it| unready.is_some_and(|why| it.contains(why)));
            assert!(
                told || seen.is_none() && unready.is_none(),
                "{status}: {seen:?}"
            );
        }
    }

    #[test]
    fn its_api_is_at_its_internal_address_unless_an_annotation_says_otherwise() {
        let status = json!({"addresses": [
            {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.7"}, {"type": "InternalIP", "address": "fd00::7"},
        ]});
        let seen = view(json!({}), json!({}), status.clone());
        assert_eq!(seen.address.as_deref(), Some("10.0.0.7"));
        let elsewhere = json!({"annotations": {API_ADDRESS: "127.0.0.1:4711"}});
        assert_eq!(
            view(elsewhere, json!({}), status).address.as_deref(),
            Some("127.0.0.1:4711")
        );
    }
}
