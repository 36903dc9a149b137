//! A client of FleetLock servers, which let one machine of a group switch at a time. It knows no machine and no config.
//!
//! `POST v1/pre-reboot` takes a slot, and `POST v1/steady-state` gives it back; both may be repeated. The header
//! `fleet-lock-protocol: true` and the body `{"client_params": {"group": …, "id": …}}` are the protocol's. An answer of 200 to 299 is yes,
//! any other one no, with a JSON body for people: `{"kind": …, "value": …}`.
//!
//! The decision: a crate of its own, though machined alone uses it, so that tests hold this very code against the server that other fleets run,
//! without a machine. A copy of the protocol in the tests was the other choice: it would agree with the server while machined does not.

#![forbid(unsafe_code)]

use std::time::Duration;

use http::uri::InvalidUri;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use instar_http_client::{Body, Client, HttpError, Request};
use serde::Deserialize;
use tokio::time::timeout;

/// Timeout for an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Limit on an answer's body, and on what is shown of it, in bytes.
const LARGEST: usize = 16 << 10;
const SHOWN: usize = 200;

/// The slot of one machine in a group, at a server.
pub struct Slot<'a> {
    /// Sends the requests.
    pub client: &'a Client,
    /// The server's address, without a slash at its end.
    pub server: String,
    /// The group, whose machines share some slots.
    pub group: &'a str,
    /// The machine, by a name that no other one of the group has.
    pub id: &'a str,
}

/// Why the machine has no slot, or has it still.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The address cannot be asked.
    #[error("{url} is no address")]
    Address {
        /// The address.
        url: String,
        /// The error with its position.
        source: InvalidUri,
    },
    /// The server gives the slot to no machine now, or not to this one, or cannot tell.
    #[error("{url} answered {status}{said}")]
    Refused {
        /// The address.
        url: String,
        /// The status.
        status: StatusCode,
        /// The server's words behind a colon; empty if it has none for people.
        said: String,
    },
    /// The server did not answer in time.
    #[error("{url}: no answer within {} s", ANSWER.as_secs())]
    Silent {
        /// The address.
        url: String,
    },
    /// The request did not reach the server, or its answer did not come back.
    #[error(transparent)]
    Transport(#[from] HttpError),
}

/// The words of a server about a refusal.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    value: String,
}

impl Slot<'_> {
    /// Takes the slot. A machine that has it keeps it.
    ///
    /// # Errors
    /// All slots of the group are taken, or the server did not say yes in time.
    pub async fn take(&self) -> Result<(), LockError> {
        self.ask("v1/pre-reboot").await
    }

    /// Gives the slot back. A machine that has none gives none.
    ///
    /// # Errors
    /// The server did not say yes in time.
    pub async fn give_back(&self) -> Result<(), LockError> {
        self.ask("v1/steady-state").await
    }

    async fn ask(&self, path: &str) -> Result<(), LockError> {
        let url = format!("{}/{path}", self.server);
        let uri: Uri = match url.parse() {
            Ok(uri) => uri,
            Err(source) => return Err(LockError::Address { url, source }),
        };
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("fleet-lock-protocol"),
            HeaderValue::from_static("true"),
        )]);
        let body = body(self.group, self.id);
        let request = Request {
            body: Body::Json(&body),
            ..Request::get(&uri, &headers)
        };
        let asking = async {
            let mut answer = self.client.send(request).await?;
            let status = answer.status;
            if status.is_success() {
                return Ok(None);
            }
            // A refusal without words is a refusal.
            let said = answer.document(LARGEST).await.unwrap_or_default();
            Ok::<_, HttpError>(Some((status, told(&said))))
        };
        match timeout(ANSWER, asking).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some((status, said)))) => Err(LockError::Refused { url, status, said }),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(LockError::Silent { url }),
        }
    }
}

fn body(group: &str, id: &str) -> String {
    serde_json::json!({"client_params": {"group": group, "id": id}}).to_string()
}

/// The words of a server, for people.
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
