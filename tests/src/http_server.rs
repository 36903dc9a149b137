//! A small static HTTP server for a node's downloads, e.g. its config.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use instar_base::lock::Lock as _;

use crate::local_server::LocalServer;

/// Timeout for a client's request.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server on 127.0.0.1, until this value is dropped.
#[derive(Debug)]
pub struct HttpServer {
    server: LocalServer,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    files: Mutex<HashMap<String, Vec<u8>>>,
    requests: Mutex<Vec<String>>,
    /// Whether every answer is 500.
    is_failing: bool,
}

impl HttpServer {
    /// Starts a server without files.
    pub fn start() -> Result<Self> {
        Self::start_with(Shared::default())
    }

    /// Starts a server that answers 500 to everything.
    pub fn failing() -> Result<Self> {
        Self::start_with(Shared {
            is_failing: true,
            ..Shared::default()
        })
    }

    fn start_with(shared: Shared) -> Result<Self> {
        let shared = Arc::new(shared);
        let asked = shared.clone();
        let server = LocalServer::start(move |connection| answer(connection, &asked))?;
        Ok(Self { server, shared })
    }

    /// Serves this content under a path, e.g. `/config.yaml`, from now on.
    pub fn serve(&self, path: &str, content: impl Into<Vec<u8>>) {
        self.shared
            .files
            .locked()
            .insert(path.to_owned(), content.into());
    }

    /// Answers 404 for this path, from now on.
    pub fn take_away(&self, path: &str) {
        self.shared.files.locked().remove(path);
    }

    /// The URL of a path in a guest.
    pub fn url_for_guest(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.host_for_guest())
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The request targets so far, with their queries, including missing files.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.locked().clone()
    }
}

fn answer(mut connection: &TcpStream, shared: &Shared) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(connection).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    for header in lines {
        if header?.is_empty() {
            break;
        }
    }
    let mut words = request.split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let path = target.split('?').next().unwrap_or_default();
    shared.requests.locked().push(target.to_owned());
    let content = shared.files.locked().get(path).cloned();
    let (status, body) = match (method, content) {
        _ if shared.is_failing => ("500 Internal Server Error", Vec::new()),
        ("GET" | "HEAD", Some(content)) => ("200 OK", content),
        ("GET" | "HEAD", None) => ("404 Not Found", Vec::new()),
        _ => ("405 Method Not Allowed", Vec::new()),
    };
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if method != "HEAD" {
        connection.write_all(&body)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http_client::http;

    #[test]
    fn serves_what_it_has_and_remembers_what_was_asked() {
        let server = HttpServer::start().unwrap();
        let address = format!("127.0.0.1:{}", server.port());
        server.serve("/config.yaml", "version: v1alpha1\n");
        let answer = http(&address, "GET", "/config.yaml?uuid=1", &[], &[]).unwrap();
        assert_eq!(
            (answer.status, answer.body.as_slice()),
            (200, b"version: v1alpha1\n".as_slice())
        );
        assert_eq!(
            http(&address, "GET", "/other", &[], &[]).unwrap().status,
            404
        );
        assert_eq!(
            http(&address, "PUT", "/config.yaml", &[], &[])
                .unwrap()
                .status,
            405
        );
        assert_eq!(
            server.requests(),
            ["/config.yaml?uuid=1", "/other", "/config.yaml"]
        );
        assert!(server.url_for_guest("/x").starts_with("http://10.0.2.2:"));
        drop(server);
        assert!(
            http(&address, "GET", "/", &[], &[]).is_err(),
            "nobody listens any more"
        );
    }
}
