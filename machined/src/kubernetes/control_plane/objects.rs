//! Objects that the cluster needs of its control plane: those that let nodes join by the token, and the role of the node.
//!
//! They are applied by the API server itself (server-side apply), which creates what is missing and leaves the fields of others alone. The node is
//! kubelet's to create, with its taints: it is only changed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::HeaderMap;
use instar_http_client::{Body, Client, Request};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::super::api_server::client;
use super::super::kubelet::refused_labels;
use super::certificates::{ADMINISTRATORS, issue};
use crate::config::{Cluster, ControlPlane, Kubernetes, NodeSettings};

/// Time limit for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(30);
/// Limit on an answer, in bytes.
const LARGEST: usize = 1 << 20;
/// The lifetime of the certificate for these calls.
const LIFETIME: Duration = Duration::from_secs(3600);
/// The group of those who show a bootstrap token, and of nodes.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const NODES: &str = "system:nodes";
const RBAC: &str = "rbac.authorization.k8s.io";
const REQUESTS: &str = "system:certificates.k8s.io:certificatesigningrequests";

/// An object with its path at the API server.
#[derive(Debug, PartialEq)]
struct Object {
    path: String,
    /// Whether it is made if it is not there.
    is_made: bool,
    content: Value,
}

/// Applies all objects.
///
/// # Errors
/// The API server does not answer, or refuses one of them.
pub async fn apply(
    kubernetes: &Kubernetes,
    plane: &ControlPlane,
    node: &str,
) -> anyhow::Result<()> {
    let cluster = &kubernetes.cluster;
    let administrator = &[ADMINISTRATORS];
    let identity = issue(
        &plane.keys.cluster,
        "machined",
        administrator,
        &[],
        LIFETIME,
    )?;
    let client = client(cluster, identity);
    for object in objects(cluster, &kubernetes.node, node) {
        let applied = timeout(ANSWER, apply_one(&client, cluster, &object)).await;
        let late = || format!("no answer within {} s", ANSWER.as_secs());
        let applied = applied.with_context(late).flatten();
        applied.with_context(|| format!("apply {}", object.path))?;
    }
    Ok(())
}

async fn apply_one(client: &Client, cluster: &Cluster, object: &Object) -> anyhow::Result<()> {
    let content = object.content.to_string();
    let (body, query) = match object.is_made {
        true => (Body::Apply(&content), "fieldManager=instar&force=true"),
        false => (Body::MergePatch(&content), "fieldManager=instar"),
    };
    let uri = format!("{}{}?{query}", cluster.endpoint, object.path);
    let (uri, headers) = (uri.parse()?, HeaderMap::new());
    let request = Request {
        body,
        ..Request::get(&uri, &headers)
    };
    let mut answer = client.send(request).await?;
    let said = answer.document(LARGEST).await?;
    let status = answer.status;
    ensure!(
        status.is_success(),
        "the API server answered {status}: {}",
        message(&said)
    );
    Ok(())
}

/// Returns the message of a `Status` of the API server.
fn message(answer: &[u8]) -> String {
    let status: Value = serde_json::from_slice(answer).unwrap_or_default();
    status["message"].as_str().unwrap_or_default().to_owned()
}

fn objects(cluster: &Cluster, settings: &NodeSettings, node: &str) -> Vec<Object> {
    let mut objects = vec![
        binding(
            "instar:nodes-may-join",
            "system:node-bootstrapper",
            BOOTSTRAPPERS,
        ),
        binding(
            "instar:joining-is-approved",
            &format!("{REQUESTS}:nodeclient"),
            BOOTSTRAPPERS,
        ),
        binding(
            "instar:renewal-is-approved",
            &format!("{REQUESTS}:selfnodeclient"),
            NODES,
        ),
    ];
    objects.extend(token(cluster.token.expose()));
    objects.extend(role(settings, node));
    objects
}

fn binding(name: &str, role: &str, group: &str) -> Object {
    Object {
        path: format!("/apis/{RBAC}/v1/clusterrolebindings/{name}"),
        is_made: true,
        content: json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
        }),
    }
}

/// Returns the Secret that makes the API server know the token; `None` if the token is of another kind.
fn token(token: &str) -> Option<Object> {
    let (id, secret) = token.split_once('.')?;
    let name = format!("bootstrap-token-{id}");
    Some(Object {
        path: format!("/api/v1/namespaces/kube-system/secrets/{name}"),
        is_made: true,
        content: json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": name, "namespace": "kube-system"},
            "stringData": {
                "token-id": id,
                "token-secret": secret,
                "usage-bootstrap-authentication": "true",
            },
        }),
    })
}

/// Returns the node with the labels that it may not give itself.
fn role(settings: &NodeSettings, node: &str) -> Option<Object> {
    let labels: Map<String, Value> = refused_labels(settings)
        .into_iter()
        .map(|name| (name.to_owned(), settings.labels[name].clone().into()))
        .collect();
    (!labels.is_empty()).then(|| Object {
        path: format!("/api/v1/nodes/{node}"),
        is_made: false,
        content: json!({"metadata": {"labels": labels}}),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::a_node::kubernetes;
    use super::*;

    #[test]
    fn a_cluster_knows_its_token_and_the_role_of_its_node() {
        let kubernetes = kubernetes();
        let objects = objects(&kubernetes.cluster, &kubernetes.node, "cp-1");
        let found = |path: &str| objects.iter().find(|it| it.path == path).unwrap();
        let secret = found("/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef");
        assert_eq!(
            secret.content["stringData"]["token-secret"],
            "0123456789abcdef"
        );
        let labels = &found("/api/v1/nodes/cp-1").content["metadata"]["labels"];
        assert_eq!(labels, &json!({"node-role.kubernetes.io/worker": ""}));
        assert_eq!(objects.len(), 5);
    }
}
