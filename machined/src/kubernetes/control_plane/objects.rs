//! Objects that the cluster has by this machine: those that let nodes join by the token, those of kube-proxy and CoreDNS, those of the config's
//! manifests, and the role of the node.
//!
//! They are applied by the API server itself (server-side apply), which creates what is missing and leaves the fields of others alone. The node is
//! kubelet's to create, with its taints: it is only changed.
//!
//! An object that the API server refuses keeps no other back: it may need one that comes later, as an object needs the definition of its kind. So
//! the caller tries all of them again.

use anyhow::{Context as _, ensure};
use http::StatusCode;
use instar_http_client::Body;
use serde_json::{Map, Value, json};

use super::super::kubelet::refused_labels;
use super::discovery::Discovery;
use super::object::{Object, RBAC};
use super::own_api::OwnApi;
use super::{dns, proxy};
use crate::config::{ControlPlane, Kubernetes, ManifestObject, NodeSettings};

/// The group of those who show a bootstrap token, and of nodes.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const NODES: &str = "system:nodes";
const REQUESTS: &str = "system:certificates.k8s.io:certificatesigningrequests";

/// How far a try to apply all objects has come.
#[derive(Debug, Default)]
pub struct Applied {
    /// The objects that the API server refused, each with its reason.
    refused: Vec<String>,
    /// Why the try ended before all objects were tried.
    ended: Option<anyhow::Error>,
}

impl Applied {
    /// Whether the cluster has all objects.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.refused.is_empty() && self.ended.is_none()
    }

    /// Names the troubles. While the node is not ready, a control plane that starts does not answer: its readiness tells that.
    #[must_use]
    pub fn problem(&self, is_ready: bool) -> Option<String> {
        match (self.refused.as_slice(), &self.ended) {
            ([only], _) => Some(format!("an object is refused, and tried again: {only}")),
            ([first, ..], _) => Some(format!(
                "{} objects are refused, and tried again; the first: {first}",
                self.refused.len()
            )),
            ([], Some(error)) if is_ready => Some(format!("the cluster's own objects: {error:#}")),
            ([], _) => None,
        }
    }
}

/// Applies all objects, in this version of Kubernetes.
pub async fn apply(
    kubernetes: &Kubernetes,
    plane: &ControlPlane,
    version: &str,
    node: &str,
) -> Applied {
    let mut refused = Vec::new();
    let tried = apply_all(kubernetes, plane, (version, node), &mut refused).await;
    let ended = tried.err();
    Applied { refused, ended }
}

/// Applies the objects in their order.
///
/// # Errors
/// The API server does not answer, or the node has not joined.
async fn apply_all(
    kubernetes: &Kubernetes,
    plane: &ControlPlane,
    (version, node): (&str, &str),
    refused: &mut Vec<String>,
) -> anyhow::Result<()> {
    let cluster = &kubernetes.cluster;
    let api = OwnApi::of(cluster, plane)?;
    let mut dns = dns::objects(cluster, plane);
    if !brings_dns(&api, plane, &dns).await? {
        dns.clear();
    }
    let own = [
        joining(cluster.token.expose()),
        proxy::objects(plane, version, node),
        dns,
    ];
    for object in own.iter().flatten() {
        let path = &object.path;
        let answer = api.apply(path, &object.content).await;
        if let Err(refusal) = answer.with_context(|| format!("apply {path}"))? {
            refused.push(format!("{path}: {refusal}"));
        }
    }
    let mut discovery = Discovery::default();
    for manifest in &plane.manifests {
        for object in &manifest.objects {
            let (kind, name) = (&object.kind, &object.name);
            let of = || format!("{kind} {name} of the manifest {}", manifest.name);
            let answer = apply_object(&api, &mut discovery, object).await;
            if let Err(reason) = answer.with_context(of)? {
                refused.push(format!("{}: {reason}", of()));
            }
        }
    }
    give_role(&api, &kubernetes.node, node).await
}

/// Whether CoreDNS is this machine's to bring. A config that turns it on and names no image, as talosctl writes it, says that there is to be a DNS:
/// one that the cluster has from somebody else stays as it is.
async fn brings_dns(
    api: &OwnApi<'_>,
    plane: &ControlPlane,
    objects: &[Object],
) -> anyhow::Result<bool> {
    if plane.core_dns_is_named {
        return Ok(true);
    }
    if dns::is_among(&plane.manifests) {
        return Ok(false);
    }
    for Object { path, .. } in objects.iter().filter(|object| dns::is_mark(object)) {
        let found = api.ask(path, Body::None).await;
        let found = found.with_context(|| format!("read {path}"))?;
        // One that cannot be read is applied, and the API server says why not.
        if found.is_ok_and(|object| dns::is_of_another(&object)) {
            tracing::info!("Kubernetes: the cluster has its DNS from somebody else: {path}");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Applies an object of a manifest; returns why it is refused.
async fn apply_object(
    api: &OwnApi<'_>,
    discovery: &mut Discovery,
    object: &ManifestObject,
) -> anyhow::Result<Result<(), String>> {
    let Some(path) = discovery.path(api, object).await? else {
        let (kind, version) = (&object.kind, &object.api_version);
        return Ok(Err(format!(
            "the API server does not serve the kind {kind} of {version}"
        )));
    };
    let answer = api.apply(&path, &object.content).await?;
    Ok(answer.map(drop).map_err(|refusal| refusal.to_string()))
}

/// Gives the node the labels that it may not give itself.
async fn give_role(api: &OwnApi<'_>, settings: &NodeSettings, node: &str) -> anyhow::Result<()> {
    let Some(labels) = role(settings) else {
        return Ok(());
    };
    let path = format!("/api/v1/nodes/{node}?fieldManager=instar");
    let answer = api.ask(&path, Body::MergePatch(&labels.to_string())).await;
    let answer = answer.context("the role of the node")?;
    let is_missing = answer.as_ref().err().map(|it| it.status) == Some(StatusCode::NOT_FOUND);
    ensure!(!is_missing, "the node {node} has not joined");
    answer.map(drop).context("the role of the node")
}

/// Returns the objects that let nodes join by this token.
fn joining(token: &str) -> Vec<Object> {
    let approved = |client: &str| format!("{REQUESTS}:{client}");
    let mut objects = vec![
        binding(
            "instar:nodes-may-join",
            "system:node-bootstrapper",
            BOOTSTRAPPERS,
        ),
        binding(
            "instar:joining-is-approved",
            &approved("nodeclient"),
            BOOTSTRAPPERS,
        ),
        binding(
            "instar:renewal-is-approved",
            &approved("selfnodeclient"),
            NODES,
        ),
    ];
    objects.extend(secret(token));
    objects
}

fn binding(name: &str, role: &str, group: &str) -> Object {
    let subject = json!({"apiGroup": RBAC, "kind": "Group", "name": group});
    Object::binding(name, role, &subject)
}

/// Returns the Secret that makes the API server know the token; `None` if the token is of another kind.
fn secret(token: &str) -> Option<Object> {
    let (id, secret) = token.split_once('.')?;
    let name = format!("bootstrap-token-{id}");
    Some(Object {
        path: format!("/api/v1/namespaces/kube-system/secrets/{name}"),
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

/// Returns the change of the node that gives it the labels that it may not give itself.
fn role(settings: &NodeSettings) -> Option<Value> {
    let labels: Map<String, Value> = refused_labels(settings)
        .into_iter()
        .map(|name| (name.to_owned(), settings.labels[name].clone().into()))
        .collect();
    (!labels.is_empty()).then(|| json!({"metadata": {"labels": labels}}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::a_node::kubernetes;
    use super::*;

    #[test]
    fn a_cluster_knows_its_token_and_the_role_of_its_node() {
        let kubernetes = kubernetes();
        let objects = joining(kubernetes.cluster.token.expose());
        let found = |path: &str| objects.iter().find(|it| it.path == path).unwrap();
        let secret = found("/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef");
        assert_eq!(
            secret.content["stringData"]["token-secret"],
            "0123456789abcdef"
        );
        assert_eq!(objects.len(), 4);
        let labels = &role(&kubernetes.node).unwrap()["metadata"]["labels"];
        assert_eq!(labels, &json!({"node-role.kubernetes.io/worker": ""}));
    }

    #[test]
    fn refused_objects_are_told_at_once_and_silence_once_the_node_is_ready() {
        let applied = |refused: &[&str], ended: Option<&'static str>| Applied {
            refused: refused.iter().copied().map(str::to_owned).collect(),
            ended: ended.map(anyhow::Error::msg),
        };
        for (applied, is_ready, problem) in [
            (applied(&[], None), true, None),
            (
                applied(&["a"], None),
                false,
                Some("an object is refused, and tried again: a"),
            ),
            (
                applied(&["a", "b", "c"], Some("late")),
                true,
                Some("3 objects are refused, and tried again; the first: a"),
            ),
            (applied(&[], Some("late")), false, None),
            (
                applied(&[], Some("late")),
                true,
                Some("the cluster's own objects: late"),
            ),
        ] {
            let told = applied.problem(is_ready);
            assert_eq!(told.as_deref(), problem, "{applied:?}");
        }
    }
}
