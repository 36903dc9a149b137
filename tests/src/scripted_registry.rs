//! A registry with answers that a test chooses: redirections, challenges, wrong lengths, drops. It remembers the
//! requests.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use instar_base::lock::Lock as _;
use serde_json::{Value, json};

use crate::local_server::LocalServer;
use crate::registry::sha256_digest;

/// Timeout for a client's request.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two bytes of a dripping answer: less than a client's timeout for silence.
const DRIP: Duration = Duration::from_secs(20);

/// The answer to a path.
#[derive(Debug, Clone)]
pub enum Reply {
    /// This content, with this Content-Type.
    Content(&'static str, Vec<u8>),
    /// A redirection to this URL.
    Redirect(String),
    /// 401: the client needs a token from this URL.
    Challenge(String),
    /// A byte now and then.
    Drip,
}

/// A server on 127.0.0.1 that lives as long as this value.
#[derive(Debug)]
pub struct ScriptedRegistry {
    server: LocalServer,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    replies: Mutex<HashMap<String, Reply>>,
    requests: Mutex<Vec<String>>,
    /// Ends dripping answers.
    stopped: AtomicBool,
}

impl ScriptedRegistry {
    /// Starts a registry without content.
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let asked = shared.clone();
        let server = LocalServer::start(move |connection| answer(connection, &asked))?;
        Ok(Self { server, shared })
    }

    /// Sets the answer to requests for `/v2/REST` from now on.
    pub fn reply(&self, rest: &str, reply: Reply) {
        self.shared
            .replies
            .locked()
            .insert(format!("/v2/{rest}"), reply);
    }

    /// Serves an image of one layer as `NAME:v1`. Returns the path of the layer's blob, whose answer the test has to
    /// set. `change` may alter the manifest before it is served.
    pub fn image(&self, name: &str, change: impl FnOnce(&mut Value)) -> String {
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/x"]},
            "rootfs": {"type": "layers", "diff_ids": [sha256_digest(b"")]},
        });
        let config = config.to_string().into_bytes();
        let layer = sha256_digest(name.as_bytes());
        let mut manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": sha256_digest(&config), "size": config.len(),
            },
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": 1024,
            }],
        });
        change(&mut manifest);
        let path = format!("{name}/blobs/{}", sha256_digest(&config));
        self.reply(&path, Reply::Content("application/octet-stream", config));
        let served = Reply::Content(
            "application/vnd.oci.image.manifest.v1+json",
            manifest.to_string().into_bytes(),
        );
        self.reply(&format!("{name}/manifests/v1"), served);
        format!("{name}/blobs/{layer}")
    }

    /// `10.0.2.2:PORT`
    pub fn host_for_guest(&self) -> String {
        self.server.host_for_guest()
    }

    /// The requests so far, each with its headers.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.locked().clone()
    }
}

impl Drop for ScriptedRegistry {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
    }
}

fn answer(mut connection: &TcpStream, shared: &Shared) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    for line in BufReader::new(connection).lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        request.push_str(&line);
        request.push('\n');
    }
    let target = request.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default().to_owned();
    shared.requests.locked().push(request);
    let reply = shared.replies.locked().get(&path).cloned();
    let head = |status: &str, headers: &str, length: usize| {
        format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )
    };
    match reply {
        None => connection.write_all(head("404 Not Found", "", 0).as_bytes()),
        Some(Reply::Content(kind, content)) => {
            let kind = format!("Content-Type: {kind}\r\n");
            connection.write_all(head("200 OK", &kind, content.len()).as_bytes())?;
            connection.write_all(&content)
        }
        Some(Reply::Redirect(to)) => {
            let to = format!("Location: {to}\r\n");
            connection.write_all(head("307 Temporary Redirect", &to, 0).as_bytes())
        }
        Some(Reply::Challenge(realm)) => {
            let challenge = format!("WWW-Authenticate: Bearer realm=\"{realm}\"\r\n");
            connection.write_all(head("401 Unauthorized", &challenge, 0).as_bytes())
        }
        Some(Reply::Drip) => {
            connection.write_all(head("200 OK", "", 1000).as_bytes())?;
            while !shared.stopped.load(Ordering::Acquire) {
                connection.write_all(b" ")?;
                std::thread::sleep(DRIP);
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http_client::http;

    #[test]
    fn says_what_it_is_told_to() {
        let registry = ScriptedRegistry::start().unwrap();
        let address = format!("127.0.0.1:{}", registry.server.port());
        let get = |path: &str| http(&address, "GET", path, &[("X-Test", "1")], &[]).unwrap();
        let blob = registry.image("a", |manifest| manifest["extra"] = 1.into());
        registry.reply(&blob, Reply::Redirect("http://elsewhere/".to_owned()));
        let manifest = get("/v2/a/manifests/v1?ns=x");
        let kind = "application/vnd.oci.image.manifest.v1+json";
        assert_eq!(manifest.header("content-type"), Some(kind));
        let manifest: Value = serde_json::from_slice(&manifest.body).unwrap();
        assert_eq!(manifest["extra"], 1);
        let redirect = get(&format!("/v2/{blob}"));
        assert_eq!(
            (redirect.status, redirect.header("location")),
            (307, Some("http://elsewhere/"))
        );
        registry.reply("b", Reply::Challenge("http://realm/".to_owned()));
        assert_eq!(get("/v2/b").status, 401);
        assert_eq!(get("/v2/c").status, 404);
        let requests = registry.requests();
        assert_eq!(requests.len(), 4);
        assert!(requests[0].contains("X-Test: 1\n"));
    }
}
