//! A stand-in for an API server: it keeps the objects that the operator reads and writes, and knows a few tokens.
//!
//! It is for the operator's page, whose visitors need watches, patches and refusals, and no machines. What only a real API server decides
//! (schemas, roles, what a patch does to defaults) is tested with the real one.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use instar_base::lock::{Changes as _, Lock as _};
use serde_json::{Value, json};

use crate::local_server::LocalServer;
use crate::scratch::Scratch;

/// Timeout for a client's request.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a watch lives: its client begins again where it ended.
const WATCH: Duration = Duration::from_secs(60);

/// The rights of the bearer of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRights {
    /// Everything.
    All,
    /// Look, and patch.
    Steer,
    /// Look.
    Look,
}

/// The stand-in, until it is dropped.
#[derive(Debug)]
pub struct ObjectServer {
    server: LocalServer,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    kept: Mutex<Kept>,
    changed: Condvar,
    tokens: BTreeMap<&'static str, TokenRights>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By their paths.
    objects: BTreeMap<String, Value>,
    version: u64,
    /// All changes: the object's path, the kind of change, and the object.
    events: Vec<(String, &'static str, Value)>,
}

impl ObjectServer {
    /// Starts a server without objects, which knows these tokens.
    pub fn start(tokens: &[(&'static str, TokenRights)]) -> Result<Self> {
        let shared = Arc::new(Shared {
            tokens: tokens.iter().copied().collect(),
            ..Shared::default()
        });
        let asked = shared.clone();
        let server = LocalServer::start(move |connection| answer(connection, &asked))?;
        Ok(Self { server, shared })
    }

    /// Keeps an object under its path, as in `/api/v1/nodes/one`.
    pub fn put(&self, path: &str, object: Value) {
        self.shared.kept.locked().put(path, object);
        self.shared.changed.notify_all();
    }

    /// An object by its path.
    pub fn get(&self, path: &str) -> Result<Value> {
        let kept = self.shared.kept.locked();
        let object = kept.objects.get(path);
        object.cloned().with_context(|| format!("no object {path}"))
    }

    /// Writes the kubeconfig of a token's bearer into the folder.
    pub fn kubeconfig(&self, folder: &Scratch, token: &str) -> Result<PathBuf> {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: own\n\
             clusters:\n- name: own\n  cluster: {{server: \"http://127.0.0.1:{}\"}}\n\
             users:\n- name: own\n  user: {{token: \"{token}\"}}\n\
             contexts:\n- name: own\n  context: {{cluster: own, user: own}}\n",
            self.server.port(),
        );
        folder.write("kubeconfig", text)
    }
}

impl Kept {
    fn put(&mut self, path: &str, mut object: Value) {
        let before = self.objects.get(path);
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        let generation = before.map_or(0, |before| {
            let generation = before["metadata"]["generation"].as_u64();
            generation.unwrap_or_default()
        });
        let has_changed = before.is_none_or(|before| before["spec"] != object["spec"]);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["uid"] = json!(path);
        object["metadata"]["generation"] = json!(generation + u64::from(has_changed));
        self.objects.insert(path.to_owned(), object.clone());
        self.events.push((path.to_owned(), kind, object));
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let object = self.objects.remove(path)?;
        self.version += 1;
        self.events
            .push((path.to_owned(), "DELETED", object.clone()));
        Some(object)
    }

    /// The objects whose paths lead through this collection.
    fn list(&self, collection: &str) -> Value {
        let objects = self.objects.iter();
        let own = objects.filter(|(path, _)| is_of(path, collection));
        let items: Vec<&Value> = own.map(|(_, object)| object).collect();
        let version = self.version.to_string();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items})
    }
}

fn is_of(path: &str, collection: &str) -> bool {
    let name = path.strip_prefix(collection);
    name.is_some_and(|name| name.starts_with('/'))
}

/// A client's request.
struct Asked {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    token: String,
    body: Value,
}

fn read(connection: &TcpStream) -> io::Result<Asked> {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter_map(|part| part.split_once('='));
    let (mut length, mut token) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "authorization" => token = value.trim_start_matches("Bearer ").to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Asked {
        method: method.unwrap_or_default(),
        path: path.to_owned(),
        query: query
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        token,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

/// A refusal, as API servers write it.
fn refused(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    (code, status)
}

fn answer(connection: &TcpStream, shared: &Shared) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let asked = read(connection)?;
    let (code, body) = match shared.tokens.get(asked.token.as_str()) {
        None => refused(401, "Unauthorized", "Unauthorized"),
        Some(rights) if !may(*rights, &asked.method) => {
            let (method, path) = (&asked.method, &asked.path);
            let message = format!("{path} is forbidden: this user cannot {method} it");
            refused(403, "Forbidden", &message)
        }
        Some(_) if asked.query.get("watch").is_some_and(|it| it == "true") => {
            return watch(connection, shared, &asked);
        }
        Some(_) => {
            let answer = shared.kept.locked().answer(asked);
            shared.changed.notify_all();
            answer
        }
    };
    let body = body.to_string();
    let mut connection = connection;
    write!(
        connection,
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn may(rights: TokenRights, method: &str) -> bool {
    match rights {
        TokenRights::All => true,
        TokenRights::Steer => ["GET", "PATCH"].contains(&method),
        TokenRights::Look => method == "GET",
    }
}

/// Writes the changes since a version, and those to come.
fn watch(mut connection: &TcpStream, shared: &Shared, asked: &Asked) -> io::Result<()> {
    let head = "HTTP/1.1 200 X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
    connection.write_all(head.as_bytes())?;
    let since = asked.query.get("resourceVersion");
    let mut seen: usize = since.and_then(|it| it.parse().ok()).unwrap_or_default();
    let until = Instant::now() + WATCH;
    while Instant::now() < until {
        let is_old = |kept: &mut Kept| kept.events.len() <= seen;
        let limit = Some(Duration::from_secs(1));
        let kept = shared
            .changed
            .wait_locked(shared.kept.locked(), limit, is_old);
        let new: Vec<_> = kept.events.iter().skip(seen).cloned().collect();
        drop(kept);
        seen += new.len();
        for (path, kind, object) in new {
            if is_of(&path, &asked.path) {
                writeln!(connection, "{}", json!({"type": kind, "object": object}))?;
            }
        }
    }
    Ok(())
}

impl Kept {
    fn answer(&mut self, asked: Asked) -> (u16, Value) {
        let (path, is_status) = match asked.path.strip_suffix("/status") {
            Some(path) => (path.to_owned(), true),
            None => (asked.path.clone(), false),
        };
        let known = self.objects.get(&path).cloned();
        match (asked.method.as_str(), known) {
            ("GET", Some(object)) => (200, object),
            ("GET", None) if is_collection(&path) => (200, self.list(&path)),
            ("POST", _) => self.create(&path, asked.body),
            ("DELETE", Some(_)) => (200, self.remove(&path).unwrap_or_default()),
            ("PATCH", Some(mut object)) => {
                merge(&mut object, &part(asked.body, is_status));
                self.put(&path, object);
                (200, self.objects[&path].clone())
            }
            ("PUT", Some(object)) => self.replace(&path, object, asked.body, is_status),
            _ => refused(404, "NotFound", &format!("{path} not found")),
        }
    }

    fn create(&mut self, collection: &str, object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{collection}/{name}");
        if self.objects.contains_key(&path) {
            return refused(409, "AlreadyExists", &format!("{path} already exists"));
        }
        self.put(&path, object);
        (201, self.objects[&path].clone())
    }

    /// Replaces an object over the version that was read.
    fn replace(&mut self, path: &str, before: Value, body: Value, is_status: bool) -> (u16, Value) {
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if version(&body) != version(&before) {
            return refused(409, "Conflict", "the object has been modified");
        }
        let object = match is_status {
            true => {
                let mut object = before;
                object["status"] = body["status"].clone();
                object
            }
            false => body,
        };
        self.put(path, object);
        (200, self.objects[path].clone())
    }
}

/// Whether a path is that of a collection: its last part is a plural.
fn is_collection(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    ["nodes", "pools", "nodeupgrades", "channels", "leases"].contains(&last)
}

/// The part of a patch that an address takes: the status has one of its own.
fn part(mut patch: Value, is_status: bool) -> Value {
    match is_status {
        true => json!({"status": patch["status"].take()}),
        false => {
            if let Some(fields) = patch.as_object_mut() {
                fields.remove("status");
            }
            patch
        }
    }
}

/// A merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(target)) => drop(target.remove(name)),
            _ => merge(&mut target[name], value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_is_merged() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        let patch = json!({"a": {"b": null, "e": {"f": null, "g": 3}}, "d": [2]});
        merge(&mut object, &patch);
        assert_eq!(object, json!({"a": {"c": 2, "e": {"g": 3}}, "d": [2]}));
    }
}
