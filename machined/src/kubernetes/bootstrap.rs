//! The kubeconfig that a node without a certificate joins its cluster with.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use crate::config::Cluster;

/// Returns the kubeconfig, as JSON, which is YAML as well. It holds the token.
pub(super) fn kubeconfig(cluster: &Cluster) -> String {
    let authorities = BASE64_STANDARD.encode(&cluster.authorities);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "cluster",
            "cluster": {
                "server": cluster.endpoint.to_string(),
                "certificate-authority-data": authorities,
            },
        }],
        "users": [{"name": "bootstrap", "user": {"token": cluster.token.expose()}}],
        "contexts": [{"name": "bootstrap", "context": {"cluster": "cluster", "user": "bootstrap"}}],
        "current-context": "bootstrap",
    })
    .to_string()
}
