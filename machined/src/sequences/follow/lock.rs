//! The client of a FleetLock server, which lets one machine of a group switch at a time.
//!
//! `POST v1/pre-reboot` takes the lock, and `POST v1/steady-state` gives it back; both may be repeated. The header
//! `fleet-lock-protocol: true` and the body `{"client_params": {"group": …, "id": …}}` are the protocol's. An answer of 200 to 299 is yes,
//! any other one no, with a JSON body for people: `{"kind": …, "value": …}`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{HeaderMap, HeaderValue};
use instar_http_client::{Body, Request};
use serde::Deserialize;
use tokio::time::timeout;

use crate::config::FleetLock;
use crate::machine::Machine;
use crate::sequences::owners_servers::client;

/// Timeout for an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Limit on an answer's body, and on what is shown of it, in bytes.
const LARGEST: usize = 16 << 10;
const SHOWN: usize = 200;

/// What a server says about a refusal.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    value: String,
}

/// Takes the lock.
///
/// # Errors
/// The server gives it to nobody now, or not to this machine; or there is no answer.
pub(super) async fn pre_reboot(
    machine: &Machine,
    lock: &FleetLock,
    id: &str,
) -> anyhow::Result<()> {
    post(machine, lock, "v1/pre-reboot", id).await
}

/// Gives the lock back.
///
/// # Errors
/// The server refuses it, or there is no answer.
pub(super) async fn steady_state(
    machine: &Machine,
    lock: &FleetLock,
    id: &str,
) -> anyhow::Result<()> {
    post(machine, lock, "v1/steady-state", id).await
}

async fn post(machine: &Machine, lock: &FleetLock, path: &str, id: &str) -> anyhow::Result<()> {
    let configured = machine.config().context("there is no config")?;
    let client = client(&configured.config);
    let url = format!("{}/{path}", lock.url);
    let uri = url
        .parse()
        .with_context(|| format!("{url} is no address"))?;
    let headers = HeaderMap::from_iter([(
        http::HeaderName::from_static("fleet-lock-protocol"),
        HeaderValue::from_static("true"),
    )]);
    let body = body(lock.group.as_str(), id);
    let request = Request {
        body: Body::Json(&body),
        ..Request::get(&uri, &headers)
    };
    let asking = async {
        let mut answer = client.send(request).await?;
        if answer.status.is_success() {
            return Ok(());
        }
        let said = answer.document(LARGEST).await.unwrap_or_default();
        bail!("{url} answered {}{}", answer.status, told(&said))
    };
    match timeout(ANSWER, asking).await {
        Ok(answered) => answered,
        Err(_) => bail!("{url}: no answer within {} s", ANSWER.as_secs()),
    }
}

fn body(group: &str, id: &str) -> String {
    serde_json::json!({"client_params": {"group": group, "id": id}}).to_string()
}

/// What a server says, for people.
fn told(body: &[u8]) -> String {
    match serde_json::from_slice::<Refusal>(body) {
        Ok(Refusal { kind, value }) => {
            let said: String = format!(": {kind}: {value}").chars().take(SHOWN).collect();
            said.replace(char::is_control, " ")
        }
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_refusals_are_those_of_the_protocol() {
        assert_eq!(
            body("drawer", "01ab"),
            r#"{"client_params":{"group":"drawer","id":"01ab"}}"#
        );
        let said = br#"{"kind": "failed_lock", "value": "all slots are taken"}"#;
        assert_eq!(told(said), ": failed_lock: all slots are taken");
        for other in [&b""[..], b"<html>", b"\x1b[2J"] {
            assert_eq!(told(other), "");
        }
        assert_eq!(told(br#"{"kind": "a\u001bb"}"#), ": a b: ");
        assert!(told(format!(r#"{{"value": "{}"}}"#, "x".repeat(999)).as_bytes()).len() <= SHOWN);
    }
}
