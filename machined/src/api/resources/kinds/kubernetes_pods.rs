//! The kinds of a Kubernetes node that its cluster knows, too: the node's object, and the static pods.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Spec, Value};
use crate::kubernetes::{NodeStatus, StaticPodStatus, static_pods};
use crate::store::{Metadata, Resource as _};

/// The node's object, as the cluster gave it last.
pub(super) const NODE_STATUSES: Kind = Kind {
    name: "NodeStatuses.kubernetes.talos.dev",
    singular: "NodeStatus",
    namespace: Namespace::Kubernetes,
    aliases: &[],
    columns: &[
        ("Ready", "{.nodeReady}"),
        ("Unschedulable", "{.unschedulable}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Store(NodeStatus::TYPE)],
    read: |machine| {
        let nodes = machine.store.list::<NodeStatus>().into_iter();
        Ok(nodes.map(node_status).collect())
    },
};

/// The static pods, as kubelet is told to run them.
pub(super) const STATIC_PODS: Kind = Kind {
    name: "StaticPods.kubernetes.talos.dev",
    singular: "StaticPod",
    columns: &[],
    sources: &[Source::Unannounced],
    read: |_| {
        let pods = static_pods()?.into_iter();
        let item = |name: String, content| Item::new(name, Spec::Bare(1, Value::Json(content)));
        Ok(pods.map(|pod| item(pod.name, pod.content)).collect())
    },
    ..NODE_STATUSES
};

/// The statuses of the static pods.
pub(super) const STATIC_POD_STATUSES: Kind = Kind {
    name: "StaticPodStatuses.kubernetes.talos.dev",
    singular: "StaticPodStatus",
    aliases: &["podstatus"],
    columns: &[("Ready", "{.conditions[?(@.type==\"Ready\")].status}")],
    sources: &[Source::Store(StaticPodStatus::TYPE), Source::StaticPods],
    read: |machine| {
        let statuses = machine.store.list::<StaticPodStatus>().into_iter();
        Ok(statuses.map(pod_status).collect())
    },
    ..NODE_STATUSES
};

fn node_status((metadata, status): (Metadata, NodeStatus)) -> Item {
    let subnets = status.pod_subnets.iter();
    let subnets = subnets.map(|subnet| Value::Prefix(subnet.parse().ok()));
    let spec = Record::default()
        .with("nodename", 1, metadata.id.as_str())
        .with("nodeReady", 2, status.is_ready)
        .with("unschedulable", 3, status.is_unschedulable)
        .with("labels", 4, Value::Texts(status.labels))
        .with("annotations", 5, Value::Texts(status.annotations))
        .with("podCIDRs", 6, subnets.collect::<Value>());
    Item::stored(metadata, spec)
}

fn pod_status((metadata, status): (Metadata, StaticPodStatus)) -> Item {
    Item::stored(metadata, Spec::Bare(1, Value::Json(status.0)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use prost::Message as _;
    use serde_json::json;

    use super::*;

    /// Talos's message of a node's status: the API's own contract has it not, as nothing here decodes one.
    #[derive(Clone, PartialEq, prost::Message)]
    struct NodeStatusMessage {
        #[prost(string, tag = "1")]
        nodename: String,
        #[prost(bool, tag = "2")]
        node_ready: bool,
        #[prost(bool, tag = "3")]
        unschedulable: bool,
        #[prost(btree_map = "string, string", tag = "4")]
        labels: BTreeMap<String, String>,
    }

    /// Talos's messages of static pods and of their statuses.
    #[derive(Clone, PartialEq, prost::Message)]
    struct PodMessage {
        #[prost(message, optional, tag = "1")]
        pod: Option<prost_types::Struct>,
    }

    #[test]
    fn a_node_is_told_as_talos_does() {
        let labels = BTreeMap::from([
            ("a".to_owned(), "b".to_owned()),
            ("c".to_owned(), String::new()),
        ]);
        let status = NodeStatus {
            is_ready: true,
            labels: labels.clone(),
            pod_subnets: vec!["10.244.0.0/24".to_owned()],
            ..NodeStatus::default()
        };
        let store = crate::store::Store::default();
        store.put("node-1", status);
        let item = node_status(store.list::<NodeStatus>().remove(0));
        let message = NodeStatusMessage::decode(item.spec.protobuf().as_slice()).unwrap();
        assert_eq!(message.nodename, "node-1");
        assert!(message.node_ready && !message.unschedulable);
        assert_eq!(message.labels, labels);
        let yaml: serde_json::Value = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
        assert_eq!(
            yaml,
            json!({
                "nodename": "node-1", "nodeReady": true, "unschedulable": false,
                "labels": labels, "annotations": {}, "podCIDRs": ["10.244.0.0/24"],
            })
        );
    }

    #[test]
    fn a_pod_is_its_own_content() {
        let pod = json!({"kind": "Pod", "spec": {"hostNetwork": true, "priority": 2, "n": null, "list": ["a", 1.5]}});
        let spec = Spec::Bare(1, Value::Json(pod.clone()));
        let yaml: serde_json::Value = serde_saphyr::from_str(&spec.yaml()).unwrap();
        assert_eq!(yaml, pod);
        let message = PodMessage::decode(spec.protobuf().as_slice()).unwrap();
        let fields = message.pod.unwrap().fields;
        let kind = fields["kind"].kind.clone().unwrap();
        assert_eq!(
            kind,
            prost_types::value::Kind::StringValue("Pod".to_owned())
        );
        let Some(prost_types::value::Kind::StructValue(inner)) = fields["spec"].kind.clone() else {
            panic!("{fields:?}");
        };
        assert_eq!(inner.fields.len(), 4);
    }
}
