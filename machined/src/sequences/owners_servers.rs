//! Requests to servers that the config names: with its trusted authorities and its proxies.

use anyhow::{Context as _, ensure};
use http::HeaderMap;
use instar_http_client::{Answer, Client, Proxies, Request};

use crate::config::MachineConfig;
use crate::intent;

/// Limit on redirections: the files of a release are often elsewhere than its page.
const REDIRECTIONS: usize = 5;

/// A client with the trust and the proxies of the config.
pub(super) fn client(config: &MachineConfig) -> Client {
    Client::new(
        intent::trusted_servers(config),
        &Proxies::from_environment(|name| config.environment.get(name).map(String::as_str)),
    )
}

/// Asks a publisher for a file; returns its answer, which is a success.
pub(super) async fn get(client: &Client, url: &str) -> anyhow::Result<Answer> {
    let uri = url
        .parse()
        .with_context(|| format!("{url} is no address"))?;
    let headers = HeaderMap::new();
    let request = Request {
        redirections: REDIRECTIONS,
        ..Request::get(&uri, &headers)
    };
    let answer = client
        .send(request)
        .await
        .with_context(|| format!("fetch {url}"))?;
    ensure!(
        answer.status.is_success(),
        "GET {url} answered {}",
        answer.status
    );
    Ok(answer)
}
