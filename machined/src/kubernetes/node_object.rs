//! The node's object in the cluster, read and changed as kubelet does it: with kubelet's certificate, which may read and change the node's
//! own object and no other.

use std::time::Duration;

use anyhow::Context as _;
use http::{HeaderMap, StatusCode, Uri};
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

/// The cluster's API says no to the node itself: unlike silence, that is no trouble of the network.
#[derive(Debug, thiserror::Error)]
#[error("{uri} answered {status}: {message}; {}", advice(*status))]
pub struct Refusal {
    uri: String,
    status: StatusCode,
    message: String,
}

impl Refusal {
    /// Reads the answer of a cluster's API. Another server, such as a balancer without a server behind it, may answer with the same numbers, and
    /// says nothing of the node.
    pub(super) fn read(uri: &Uri, status: StatusCode, document: &[u8]) -> Option<Self> {
        let refuses = [
            StatusCode::UNAUTHORIZED,
            StatusCode::FORBIDDEN,
            StatusCode::NOT_FOUND,
        ];
        let answer: Value = serde_json::from_slice(document).ok()?;
        let is_of_api = answer["kind"] == "Status" && answer["code"] == status.as_u16();
        (is_of_api && refuses.contains(&status)).then(|| Refusal {
            uri: uri.to_string(),
            status,
            message: answer["message"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// The refusal that an error comes from.
    pub fn of(error: &anyhow::Error) -> Option<&Self> {
        error.downcast_ref()
    }

    /// Whether the cluster has no such node.
    pub fn is_absence(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => {
            "kubelet registers its node when it starts: if the node stays away, `instarctl service kubelet restart` has it registered anew"
        }
        _ => {
            "if that stays so, kubelet's certificate is not one of this cluster: compare the endpoint, the authorities and the token in the \
             config with the cluster's; a config with another endpoint or other authorities has the node join anew"
        }
    }
}

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
            if let Some(refusal) = Refusal::read(&self.uri, answer.status, &document) {
                return Err(anyhow::Error::from(refusal));
            }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn an_api_that_says_no_says_what_to_do_and_no_other_server_does() {
        let uri: Uri = "https://a:6443/api/v1/nodes/worker-1".parse().unwrap();
        let of_api =
            |code: u16| json!({"kind": "Status", "code": code, "message": "no"}).to_string();
        let table = [
            (401, of_api(401), Some("token")),
            (403, of_api(403), Some("token")),
            (404, of_api(404), Some("service kubelet restart")),
            // It may do so a moment later.
            (429, of_api(429), None),
            (503, of_api(503), None),
            (404, "<html>not found</html>".to_owned(), None),
            (403, json!({"error": "blocked"}).to_string(), None),
            (200, json!({"kind": "Node"}).to_string(), None),
        ];
        for (status, document, advice) in table {
            let status = StatusCode::from_u16(status).unwrap();
            let refusal = Refusal::read(&uri, status, document.as_bytes());
            assert_eq!(refusal.is_some(), advice.is_some(), "{status} {document}");
            let (Some(refusal), Some(advice)) = (refusal, advice) else {
                continue;
            };
            assert_eq!(refusal.is_absence(), status == StatusCode::NOT_FOUND);
            let told = refusal.to_string();
            assert!(told.contains(advice) && told.contains(": no; "), "{told}");
        }
    }
}
