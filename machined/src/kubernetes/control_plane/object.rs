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
