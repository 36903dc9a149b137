//! The node's object in the cluster, as far as readers of the API ask for it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::store::Resource;

/// The node's object as the cluster gave it last. Its id is the node's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Whether the cluster calls the node ready.
    pub is_ready: bool,
    /// Whether the node is cordoned: it gets no new pods.
    pub is_unschedulable: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// The subnets of its pods.
    pub pod_subnets: Vec<String>,
}

impl Resource for NodeStatus {
    const NAMESPACE: &'static str = "k8s";
    const TYPE: &'static str = "NodeStatuses.kubernetes.talos.dev";
}

impl NodeStatus {
    /// Reads a node's object.
    pub fn of(object: &Value) -> Self {
        let conditions = object["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_ready = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
        let subnets = object["spec"]["podCIDRs"].as_array().into_iter().flatten();
        NodeStatus {
            is_ready: conditions.any(is_ready),
            is_unschedulable: object["spec"]["unschedulable"] == true,
            labels: texts(&object["metadata"]["labels"]),
            annotations: texts(&object["metadata"]["annotations"]),
            pod_subnets: subnets.filter_map(text).collect(),
        }
    }
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    let entries = entries.filter_map(|(key, value)| Some((key.clone(), text(value)?)));
    entries.collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_ready_by_its_condition_and_cordoned_by_its_spec() {
        let object = json!({
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"unschedulable": true, "podCIDRs": ["10.244.0.0/24"]},
            "status": {"conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True"},
            ]},
        });
        let one = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        let expected = NodeStatus {
            is_ready: true,
            is_unschedulable: true,
            labels: one("a", "b"),
            annotations: one("c", "d"),
            pod_subnets: vec!["10.244.0.0/24".to_owned()],
        };
        assert_eq!(NodeStatus::of(&object), expected);
        assert_eq!(NodeStatus::of(&json!({})), NodeStatus::default());
    }
}
