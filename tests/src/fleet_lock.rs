//! A server of the protocol FleetLock, after its text: one slot for each group, recursive, given back by its owner alone. It also takes the
//! reports of machines.
//!
//! The two well-known servers need etcd or Kubernetes, and no registry of packages has them. `tests/kubernetes/fleet_lock.rs` holds this one
//! against the first of them.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use instar_base::lock::Lock as _;
use serde_json::{Value, json};

use crate::local_server::LocalServer;

/// Timeout for a client's request.
const PATIENCE: Duration = Duration::from_secs(30);
/// Limit on a request's body.
const LARGEST: usize = 64 << 10;

/// The server, until this value is dropped.
#[derive(Debug)]
pub struct FleetLockServer {
    server: LocalServer,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The owner of each group's slot.
    owners: BTreeMap<String, String>,
    /// All owners so far, in their order.
    history: Vec<String>,
    refused: usize,
    reports: Vec<Value>,
}

impl FleetLockServer {
    /// Starts a server with free slots.
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let asked = shared.clone();
        let server = LocalServer::start(move |connection| serve(connection, &asked))?;
        Ok(Self { server, shared })
    }

    /// The address of the server on this host.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port())
    }

    /// The address of the server in a guest.
    pub fn url_for_guest(&self) -> String {
        format!("http://{}", self.server.host_for_guest())
    }

    /// Gives a group's slot to somebody.
    pub fn give(&self, group: &str, id: &str) {
        self.shared.locked().owners.insert(group.into(), id.into());
    }

    /// Takes a group's slot back, as an administrator does.
    pub fn take_back(&self, group: &str) {
        self.shared.locked().owners.remove(group);
    }

    /// The owner of a group's slot.
    pub fn owner(&self, group: &str) -> Option<String> {
        self.shared.locked().owners.get(group).cloned()
    }

    /// All that have got a slot, in their order, each time that it was free before.
    pub fn history(&self) -> Vec<String> {
        self.shared.locked().history.clone()
    }

    /// How often a slot was refused.
    pub fn refused(&self) -> usize {
        self.shared.locked().refused
    }

    /// The reports of machines, in their order.
    pub fn reports(&self) -> Vec<Value> {
        self.shared.locked().reports.clone()
    }
}

/// A request: its path, whether it has the protocol's header, and its body.
struct Request {
    path: String,
    has_header: bool,
    body: Value,
}

fn serve(mut connection: &TcpStream, shared: &Mutex<Shared>) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let request = read(connection)?;
    let (status, body) = answer(&request, &mut shared.locked());
    let body = body.to_string();
    write!(
        connection,
        "HTTP/1.1 {status} Answer\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn read(connection: &TcpStream) -> io::Result<Request> {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut has_header) = (0, false);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "fleet-lock-protocol" => has_header = value.trim() == "true",
            _ => {}
        }
    }
    let mut body = vec![0; length.min(LARGEST)];
    reader.read_exact(&mut body)?;
    Ok(Request {
        path,
        has_header,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

fn answer(request: &Request, shared: &mut Shared) -> (u16, Value) {
    let refuse = |status, kind: &str, value: &str| (status, json!({"kind": kind, "value": value}));
    if request.path == "/report" {
        shared.reports.push(request.body.clone());
        return (200, json!({}));
    }
    if !request.has_header {
        return refuse(400, "missing_header", "fleet-lock-protocol is not true");
    }
    let parameters = &request.body["client_params"];
    let (Some(id), Some(group)) = (parameters["id"].as_str(), parameters["group"].as_str()) else {
        return refuse(400, "bad_body", "id and group are missing");
    };
    let owner = shared.owners.get(group).cloned();
    match (request.path.as_str(), owner) {
        ("/v1/pre-reboot", None) => {
            shared.owners.insert(group.into(), id.into());
            shared.history.push(id.into());
            (200, json!({}))
        }
        ("/v1/pre-reboot", Some(owner)) if owner == id => (200, json!({})),
        ("/v1/pre-reboot", Some(_)) => {
            shared.refused += 1;
            refuse(409, "failed_lock", "all slots are taken")
        }
        ("/v1/steady-state", owner) => {
            if owner.as_deref() == Some(id) {
                shared.owners.remove(group);
            }
            (200, json!({}))
        }
        _ => refuse(404, "not_found", "there is no such endpoint"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http_client::http;

    #[test]
    fn one_client_has_the_slot() {
        let server = FleetLockServer::start().unwrap();
        let address = format!("127.0.0.1:{}", server.server.port());
        let ask = |path: &str, id: &str| {
            let body = json!({"client_params": {"id": id, "group": "a"}}).to_string();
            let headers = [("fleet-lock-protocol", "true")];
            http(&address, "POST", path, &headers, body.as_bytes())
                .unwrap()
                .status
        };
        assert_eq!(ask("/v1/pre-reboot", "one"), 200);
        assert_eq!(ask("/v1/pre-reboot", "one"), 200);
        assert_eq!(ask("/v1/pre-reboot", "two"), 409);
        assert_eq!(ask("/v1/steady-state", "two"), 200);
        assert_eq!(server.owner("a").as_deref(), Some("one"));
        assert_eq!(ask("/v1/steady-state", "one"), 200);
        assert_eq!(ask("/v1/pre-reboot", "two"), 200);
        assert_eq!(server.history(), ["one", "two"]);
        let bare = http(&address, "POST", "/v1/pre-reboot", &[], b"{}").unwrap();
        assert_eq!(bare.status, 400);
    }
}
