//! Reports changes of the state to a server of the owner. Nobody waits for it: while one report is under way, the newest one waits and the
//! others are dropped.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use instar_http_client::{Body, Client, Request};
use serde::Serialize;
use tokio::time::timeout;

use crate::base::lock::Lock as _;
use crate::follow::FollowFact;
use crate::machine::Machine;
use crate::sequences::owners_servers::client;
use crate::values::EndpointUrl;

/// Timeout for one report.
const SENT: Duration = Duration::from_secs(30);

/// A change, as it is sent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    node: &'a str,
    channel: &'a str,
    running: &'a str,
    state: &'a str,
    release: &'a str,
    digest: &'a str,
    reason: &'a str,
    /// Seconds since 1970.
    at: u64,
}

/// Sends reports to one server, one at a time.
pub(super) struct Reporter {
    to: Option<EndpointUrl>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    newest: Option<String>,
    is_sending: bool,
}

impl Reporter {
    pub(super) fn new(to: Option<EndpointUrl>) -> Self {
        Reporter {
            to,
            waiting: Arc::default(),
        }
    }

    /// Sends a change, if there is a server for it. Returns at once.
    pub(super) fn report(&self, machine: &Machine, channel: &str, fact: &FollowFact) {
        let (Some(to), Some(configured)) = (&self.to, machine.config()) else {
            return;
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let report = Report {
            node: &machine.hostname(),
            channel,
            running: &machine.running.version,
            state: fact.state,
            release: &fact.release,
            digest: &fact.digest,
            reason: &fact.reason,
            at: since.unwrap_or_default().as_secs(),
        };
        let Ok(text) = serde_json::to_string(&report) else {
            return;
        };
        let begins = {
            let mut waiting = self.waiting.locked();
            waiting.newest = Some(text);
            !std::mem::replace(&mut waiting.is_sending, true)
        };
        if begins {
            let sending = send_all(client(&configured.config), to.clone(), self.waiting.clone());
            crate::base::task::spawn(sending);
        }
    }
}

/// Sends the newest report until there is none.
async fn send_all(client: Client, to: EndpointUrl, waiting: Arc<Mutex<Waiting>>) {
    loop {
        let next = {
            let mut waiting = waiting.locked();
            let next = waiting.newest.take();
            waiting.is_sending = next.is_some();
            next
        };
        let Some(text) = next else {
            return;
        };
        match timeout(SENT, send(&client, &to, &text)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("{to} does not take the report: {error:#}"),
            Err(_) => tracing::warn!("{to} does not take the report within {} s", SENT.as_secs()),
        }
    }
}

async fn send(client: &Client, to: &EndpointUrl, text: &str) -> anyhow::Result<()> {
    let (uri, headers) = (to.to_string().parse()?, HeaderMap::new());
    let request = Request {
        body: Body::Json(text),
        ..Request::get(&uri, &headers)
    };
    let answer = client.send(request).await?;
    anyhow::ensure!(answer.status.is_success(), "it answered {}", answer.status);
    Ok(())
}
