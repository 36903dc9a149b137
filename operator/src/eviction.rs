//! Which pods have to leave a node.

use k8s_openapi::api::core::v1::Pod;

/// The label of pods of the operator's own Deployment, and its value.
const OWN: (&str, &str) = ("app.kubernetes.io/name", crate::manifest::NAME);
/// Kubelet's own pods, which the API server shows a copy of.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether a pod has to leave its node. A DaemonSet's would be back at once, one of kubelet's own is not the API server's to move, and one that has
/// ended holds nothing. The operator's own stay, those in its `namespace`: on the only node that takes pods, nobody would be left who uncordons it.
/// They come back with the node, and the other replica may drive meanwhile.
pub(crate) fn has_to_go(pod: &Pod, namespace: &str) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let is_named = labels
        .and_then(|labels| labels.get(OWN.0))
        .is_some_and(|name| name == OWN.1);
    if is_named && pod.metadata.namespace.as_deref() == Some(namespace) {
        return false;
    }
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    let annotations = pod.metadata.annotations.as_ref();
    let is_mirror = annotations.is_some_and(|it| it.contains_key(MIRROR));
    let owners = pod.metadata.owner_references.as_ref();
    let mut owners = owners.into_iter().flatten();
    let is_of_daemon_set =
        owners.any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
    !is_mirror && !is_of_daemon_set && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The name of a pod, for people.
pub(crate) fn name(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_that_cannot_or_need_not_go_stay() {
        let owner = |kind: &str, controller: bool| json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "1", "controller": controller}]});
        let own = |namespace: &str| json!({"namespace": namespace, "labels": {OWN.0: OWN.1}});
        for (metadata, phase, expected) in [
            (json!({}), "Running", true),
            (owner("ReplicaSet", true), "Running", true),
            (owner("ReplicaSet", true), "Pending", true),
            (owner("DaemonSet", true), "Running", false),
            (owner("DaemonSet", false), "Running", true),
            (json!({"annotations": {MIRROR: "x"}}), "Running", false),
            (own("instar-system"), "Running", false),
            (own("default"), "Running", true),
            (json!({}), "Succeeded", false),
            (json!({}), "Failed", false),
        ] {
            let pod = json!({"metadata": metadata, "status": {"phase": phase}});
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            assert_eq!(has_to_go(&pod, "instar-system"), expected, "{pod:?}");
        }
    }
}
