//! Calls to the API server of this machine, as an administrator of its cluster.

use std::time::Duration;

use anyhow::Context as _;
use http::{HeaderMap, StatusCode};
use instar_http_client::{Body, Client, Request};
use serde_json::Value;
use tokio::time::timeout;

use super::super::api_server::client;
use super::certificates::{ADMINISTRATORS, issue};
use crate::config::{ClientIdentity, Cluster, ControlPlane};

/// Time limit for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(30);
/// Limit on an answer, in bytes: the largest object that etcd takes, 1.5 MiB, as JSON and with the owners of its fields.
const LARGEST: usize = 4 << 20;
/// The lifetime of the certificate for these calls.
const LIFETIME: Duration = Duration::from_secs(3600);

/// The API server, and who calls it.
pub(super) struct OwnApi<'a> {
    client: Client,
    cluster: &'a Cluster,
}

/// An answer of the API server that is no success.
#[derive(Debug, thiserror::Error)]
#[error("the API server answered {status}: {message}")]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    message: String,
}

/// Signs a certificate by which machined is an administrator of its own cluster, for one hour.
///
/// # Errors
/// The cluster's key cannot sign it.
pub(in crate::kubernetes) fn own_identity(plane: &ControlPlane) -> anyhow::Result<ClientIdentity> {
    let (authority, groups) = (&plane.keys.cluster, &[ADMINISTRATORS]);
    issue(authority, "machined", groups, &[], LIFETIME)
}

impl<'a> OwnApi<'a> {
    /// The manager of the fields that machined applies.
    pub(super) const MANAGER: &'static str = "instar";

    /// # Errors
    /// The cluster's key cannot sign a certificate.
    pub(super) fn of(cluster: &'a Cluster, plane: &ControlPlane) -> anyhow::Result<Self> {
        let client = client(cluster, own_identity(plane)?);
        Ok(OwnApi { client, cluster })
    }

    /// Has the API server create an object, or change the fields that the content has; it leaves the fields of others alone (server-side apply).
    ///
    /// # Errors
    /// The API server does not answer.
    pub(super) async fn apply(
        &self,
        path: &str,
        content: &Value,
    ) -> anyhow::Result<Result<Value, Refusal>> {
        let path = format!("{path}?fieldManager={}&force=true", Self::MANAGER);
        self.ask(&path, Body::Apply(&content.to_string())).await
    }

    /// Sends something to a path with its query, and returns the document of the answer.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(super) async fn ask(
        &self,
        path: &str,
        body: Body<'_>,
    ) -> anyhow::Result<Result<Value, Refusal>> {
        let answer = timeout(ANSWER, self.exchange(path, body)).await;
        let late = || format!("no answer within {} s", ANSWER.as_secs());
        answer.with_context(late).flatten()
    }

    async fn exchange(&self, path: &str, body: Body<'_>) -> anyhow::Result<Result<Value, Refusal>> {
        let uri = format!("{}{path}", self.cluster.endpoint).parse()?;
        let headers = HeaderMap::new();
        let request = Request {
            body,
            ..Request::get(&uri, &headers)
        };
        let mut answer = self.client.send(request).await?;
        let document = answer.document(LARGEST).await?;
        // What is no JSON is shown by its status alone.
        let document: Value = serde_json::from_slice(&document).unwrap_or_default();
        let status = answer.status;
        if status.is_success() {
            return Ok(Ok(document));
        }
        let message = document["message"].as_str().unwrap_or_default().to_owned();
        Ok(Err(Refusal { status, message }))
    }
}
