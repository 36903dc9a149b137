//! Which nodes may be replaced by a version: those that hold nothing which the cluster cannot lose. Pure.

use crate::node::NodeView;

/// The label of nodes with a part of the cluster's own data (kubeadm, and the well-known labels of Kubernetes).
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Checks that none of the nodes would lose a member of etcd.
///
/// # Errors
/// One would; says which, and what to do.
pub(crate) fn check(nodes: &[NodeView]) -> Result<(), String> {
    let mut nodes = nodes.iter();
    let holder = nodes.find(|node| node.labels.contains_key(CONTROL_PLANE));
    match holder {
        None => Ok(()),
        Some(node) => Err(format!(
            "strategy: {} is a node of the control plane, and its etcd would be lost with EPHEMERAL. Give such nodes a pool of their own, with the \
             strategy InPlace",
            node.name
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn no_member_of_etcd_is_lost() {
        let node = |name: &str, labels: &[&str]| {
            let labels: serde_json::Map<_, _> = labels
                .iter()
                .map(|label| ((*label).to_owned(), json!("")))
                .collect();
            let object = json!({"metadata": {"name": name, "labels": labels}});
            NodeView::of(&serde_json::from_value(object).unwrap())
        };
        let worker = || node("n1", &["node-role.kubernetes.io/worker"]);
        assert_eq!(check(&[worker()]), Ok(()));
        let why = check(&[worker(), node("n2", &[CONTROL_PLANE])]).unwrap_err();
        assert!(why.contains("n2 is a node of the control plane"), "{why}");
    }
}
