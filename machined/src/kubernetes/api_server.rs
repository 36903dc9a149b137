//! The client for the API server of a cluster.

use anyhow::{Context as _, ensure};
use http::{HeaderMap, Uri};
use instar_http_client::{Client, Proxies, Request, Trust};
use serde::de::DeserializeOwned;

use crate::config::{ClientIdentity, Cluster, HostTls};

/// A client that trusts the cluster's authorities, and shows this certificate. It uses no proxy.
pub(super) fn client(cluster: &Cluster, identity: ClientIdentity) -> Client {
    let tls = HostTls {
        ca: Some(cluster.authorities.clone()),
        client_identity: Some(identity),
        insecure_skip_verify: false,
    };
    let trust = Trust {
        hosts: [(cluster.endpoint.authority.clone(), tls)].into(),
        ..Trust::default()
    };
    Client::new(trust, &Proxies::default())
}

/// Reads an object or a list of at most `limit` bytes.
///
/// # Errors
/// The API server cannot be reached, or refuses; its answer is larger, or not what was asked for.
pub(super) async fn get<T: DeserializeOwned>(
    client: &Client,
    uri: &str,
    limit: usize,
) -> anyhow::Result<T> {
    let address: Uri = uri
        .parse()
        .with_context(|| format!("{uri} is no address"))?;
    let headers = HeaderMap::new();
    let mut answer = client.send(Request::get(&address, &headers)).await?;
    let document = answer.document(limit).await?;
    ensure!(
        answer.status.is_success(),
        "{uri} answered {}",
        answer.status
    );
    serde_json::from_slice(&document)
        .with_context(|| format!("the answer of {uri} is not what was asked for"))
}
