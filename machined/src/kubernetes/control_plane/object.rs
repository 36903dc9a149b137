//! An object with its path at the API server.

use serde_json::{Value, json};

/// The group of the API for rights.
pub(super) const RBAC: &str = "rbac.authorization.k8s.io";

#[derive(Debug, PartialEq)]
pub(super) struct Object {
    pub(super) path: String,
    pub(super) content: Value,
}

impl Object {
    /// The namespace of the system.
    pub(super) const SYSTEM: &str = "kube-system";

    /// An object in the namespace of the system; `root` is the path of its apiVersion.
    pub(super) fn in_system(root: &str, resource: &str, name: &str, content: Value) -> Self {
        Object {
            path: format!("{root}/namespaces/{}/{resource}/{name}", Self::SYSTEM),
            content,
        }
    }

    /// The metadata of an object in the namespace of the system.
    pub(super) fn metadata_in_system(name: &str, labels: &Value) -> Value {
        json!({"name": name, "namespace": Self::SYSTEM, "labels": labels})
    }

    /// A ClusterRoleBinding of this name that gives a ClusterRole to one subject.
    pub(super) fn binding(name: &str, role: &str, subject: &Value) -> Self {
        Object {
            path: format!("/apis/{RBAC}/v1/clusterrolebindings/{name}"),
            content: json!({
                "apiVersion": format!("{RBAC}/v1"),
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                "subjects": [subject],
            }),
        }
    }
}
