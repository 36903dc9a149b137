//! Kubeconfigs: of the programs, of the node, and of the administrator.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::certificates::{ADMINISTRATORS, issue};
use crate::config::{ClientIdentity, ControlPlane, EndpointUrl, Kubernetes};

/// The lifetime of an administrator's certificate: a year.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// The administrator's name.
const ADMINISTRATOR: &str = "admin";

/// Returns a kubeconfig for the bearer of a certificate.
pub(super) fn of(
    cluster: &str,
    endpoint: &EndpointUrl,
    authorities: &str,
    user: &str,
    identity: &ClientIdentity,
) -> String {
    let user_data = json!({
        "client-certificate-data": BASE64_STANDARD.encode(&identity.certificate),
        "client-key-data": BASE64_STANDARD.encode(identity.key.expose()),
    });
    kubeconfig(cluster, endpoint, authorities, user, user_data)
}

/// Returns the node's kubeconfig, whose certificate kubelet renews itself.
pub(super) fn of_node(kubernetes: &Kubernetes, certificate: &str) -> String {
    let cluster = &kubernetes.cluster;
    let user = json!({"client-certificate": certificate, "client-key": certificate});
    kubeconfig(
        "cluster",
        &cluster.endpoint,
        &cluster.authorities,
        "node",
        user,
    )
}

fn kubeconfig(
    cluster: &str,
    endpoint: &EndpointUrl,
    authorities: &str,
    user: &str,
    identity: Value,
) -> String {
    let context = format!("{user}@{cluster}");
    let at = json!({
        "server": endpoint.to_string(),
        "certificate-authority-data": BASE64_STANDARD.encode(authorities),
    });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": at}],
        "users": [{"name": user, "user": identity}],
        "contexts": [{"name": context, "context": {"cluster": cluster, "user": user}}],
        "current-context": context,
    })
    .to_string()
}

/// Makes a kubeconfig for the cluster's administrator, with a certificate of its own.
///
/// # Errors
/// The cluster's key cannot be used.
pub fn administrator(kubernetes: &Kubernetes, plane: &ControlPlane) -> anyhow::Result<String> {
    let identity = issue(
        &plane.keys.cluster,
        ADMINISTRATOR,
        &[ADMINISTRATORS],
        &[],
        LIFETIME,
    )?;
    let authorities = &kubernetes.cluster.authorities;
    Ok(of(
        &plane.cluster_name,
        &plane.endpoint,
        authorities,
        ADMINISTRATOR,
        &identity,
    ))
}
