//! Whether the node is ready: its services run, and the cluster says so.
//!
//! The cluster is asked as kubelet asks it, with kubelet's certificate, which may read the node's own object and no other.

use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use http::HeaderMap;
use instar_http_client::{Client, Get, Proxies, Trust};
use serde_json::Value;
use tokio::time::timeout;

use super::trial::Readiness;
use super::{NodeService, ServiceState, var};
use crate::config::{ClientIdentity, Cluster, HostTls, Secret};

/// Time limit for the cluster's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Limit on the node's object, in bytes: it lists the images of the node.
const LARGEST: usize = 1 << 20;
/// The certificate that kubelet uses now, with its key, as the container sees the directory.
const PKI: &str = "lib/kubelet/pki";
const CURRENT: &str = "kubelet-client-current.pem";

/// Finds out whether the node is ready.
pub async fn readiness(cluster: &Cluster, node: &str, services: &[NodeService]) -> Readiness {
    if services.is_empty() {
        return Readiness::NotReady("none of its services has started".to_owned());
    }
    let stopped = services.iter().find(|it| it.state != ServiceState::Running);
    if let Some(service) = stopped {
        let last = service.last.as_deref().unwrap_or("it has not run yet");
        let (name, state) = (&service.name, service.state.word());
        return Readiness::NotReady(format!("{name} is {state}: {last}"));
    }
    let identity = match identity() {
        Ok(Some(identity)) => identity,
        Ok(None) => return Readiness::NotReady("it has not joined the cluster".to_owned()),
        Err(error) => return Readiness::Unknown(format!("kubelet's certificate: {error}")),
    };
    match timeout(ANSWER, ask(cluster, node, identity)).await {
        Ok(Ok(node)) => of_node(&node),
        Ok(Err(error)) => Readiness::Unknown(format!("{error:#}")),
        Err(_) => Readiness::Unknown(format!("no answer within {} s", ANSWER.as_secs())),
    }
}

/// Returns kubelet's certificate and key; `None` if it has none yet.
fn identity() -> io::Result<Option<ClientIdentity>> {
    let pki = var().join(PKI);
    // The link leads to a file of the same directory, by its path in the container.
    let current = match fs::read_link(pki.join(CURRENT)) {
        Ok(current) => current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = current.file_name().ok_or(io::ErrorKind::InvalidData)?;
    let pem = fs::read_to_string(pki.join(name))?;
    Ok(Some(ClientIdentity {
        certificate: pem.clone(),
        key: Secret::new(pem),
    }))
}

/// Reads the node's object.
async fn ask(cluster: &Cluster, node: &str, identity: ClientIdentity) -> anyhow::Result<Value> {
    let tls = HostTls {
        ca: Some(cluster.authorities.clone()),
        client_identity: Some(identity),
        insecure_skip_verify: false,
    };
    let trust = Trust {
        hosts: [(cluster.endpoint.authority.clone(), tls)].into(),
        ..Trust::default()
    };
    let uri = format!("{}/api/v1/nodes/{node}", cluster.endpoint);
    let get = Get {
        uri: &uri
            .parse()
            .with_context(|| format!("{uri} is no address"))?,
        headers: &HeaderMap::new(),
        body: None,
        origin: None,
        redirections: 0,
    };
    let client = Client::new(trust, &Proxies::default());
    let mut answer = client.send(get).await?;
    let document = answer.document(LARGEST).await?;
    anyhow::ensure!(
        answer.status.is_success(),
        "GET {uri} answered {}",
        answer.status
    );
    Ok(serde_json::from_slice(&document)?)
}

/// Reads the condition `Ready` of a node's object.
fn of_node(node: &Value) -> Readiness {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let Some(ready) = conditions.find(|it| it["type"] == "Ready") else {
        return Readiness::NotReady("the cluster says nothing of it yet".to_owned());
    };
    if ready["status"] == "True" {
        return Readiness::Ready;
    }
    let word = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    Readiness::NotReady(format!("{}: {}", word("reason"), word("message")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_condition_ready_decides() {
        let node = |status: &str| {
            json!({"status": {"conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": "no CNI"},
            ]}})
        };
        assert_eq!(of_node(&node("True")), Readiness::Ready);
        for other in ["False", "Unknown"] {
            let why = "KubeletNotReady: no CNI".to_owned();
            assert_eq!(of_node(&node(other)), Readiness::NotReady(why));
        }
        assert!(matches!(of_node(&json!({})), Readiness::NotReady(_)));
    }
}
