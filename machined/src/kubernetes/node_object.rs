//! The node's object in the cluster, read and changed as kubelet does it: with kubelet's certificate, which may read and change the node's
//! own object and no other.

use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use http::{HeaderMap, Uri};
use instar_http_client::{Body, Client, Proxies, Request, Trust};
use serde_json::Value;
use tokio::time::timeout;

use super::var;
use crate::config::{ClientIdentity, Cluster, HostTls, Secret};

/// Time limit for the cluster's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Limit on the node's object, in bytes: it lists the images of the node.
const LARGEST: usize = 1 << 20;
/// The certificate that kubelet uses now, with its key, as the container sees the directory.
const PKI: &str = "lib/kubelet/pki";
const CURRENT: &str = "kubelet-client-current.pem";

/// The address of the node's object, and who asks for it.
pub struct NodeObject {
    client: Client,
    uri: Uri,
}

impl NodeObject {
    /// The object of a node; `None` if kubelet has no certificate yet, as the node has not joined.
    ///
    /// # Errors
    /// kubelet's certificate cannot be read, or the name of the node is no part of an address.
    pub fn of(cluster: &Cluster, node: &str) -> anyhow::Result<Option<Self>> {
        let Some(identity) = identity().context("kubelet's certificate")? else {
            return Ok(None);
        };
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
        Ok(Some(NodeObject {
            client: Client::new(trust, &Proxies::default()),
            uri: uri
                .parse()
                .with_context(|| format!("{uri} is no address"))?,
        }))
    }

    /// Reads the object.
    ///
    /// # Errors
    /// The cluster does not answer within its limit, or refuses.
    pub async fn read(&self) -> anyhow::Result<Value> {
        self.send(Body::None).await
    }

    /// Changes the object by a merge patch (RFC 7396), and returns what it is now.
    ///
    /// # Errors
    /// The cluster does not answer within its limit, or refuses.
    pub async fn change(&self, patch: &Value) -> anyhow::Result<Value> {
        self.send(Body::MergePatch(&patch.to_string())).await
    }

    async fn send(&self, body: Body<'_>) -> anyhow::Result<Value> {
        let exchange = async {
            let headers = HeaderMap::new();
            let request = Request {
                body,
                ..Request::get(&self.uri, &headers)
            };
            let mut answer = self.client.send(request).await?;
            let document = answer.document(LARGEST).await?;
            anyhow::ensure!(
                answer.status.is_success(),
                "{} answered {}",
                self.uri,
                answer.status
            );
            Ok(serde_json::from_slice(&document)?)
        };
        let answer = timeout(ANSWER, exchange).await;
        answer.with_context(|| format!("{}: no answer within {} s", self.uri, ANSWER.as_secs()))?
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
