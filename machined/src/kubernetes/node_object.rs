//! The node's object in the cluster, read and changed as kubelet does it: with kubelet's certificate, which may read and change the node's
//! own object and no other.

use std::time::Duration;

use anyhow::Context as _;
use http::{HeaderMap, Uri};
use instar_http_client::{Body, Client, Request};
use serde_json::Value;
use tokio::time::timeout;

use super::api_server::client;
use super::kubelet_certificate;
use crate::config::{ClientIdentity, Cluster, Secret};

/// Time limit for the cluster's answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Limit on the node's object, in bytes: it lists the images of the node.
const LARGEST: usize = 1 << 20;

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
        let pem = kubelet_certificate::read().context("kubelet's certificate")?;
        let Some(pem) = pem else {
            return Ok(None);
        };
        let identity = ClientIdentity {
            certificate: pem.clone(),
            key: Secret::new(pem),
        };
        let uri = format!("{}/api/v1/nodes/{node}", cluster.endpoint);
        Ok(Some(NodeObject {
            client: client(cluster, identity),
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
