//! Secrets by an API server in this process, which keeps one.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use instar_rollout_driver::ConfigChange;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// The one Secret, and the requests, each as `METHOD path`.
#[derive(Default)]
struct ApiServer {
    secret: Option<Value>,
    asked: Vec<String>,
    /// The status with which it refuses to write.
    refuses: Option<u16>,
}

type Shared = Arc<Mutex<ApiServer>>;

async fn serve() -> (ConfigSecrets, Shared) {
    let server = Shared::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let shared = server.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer(stream, shared.clone()));
        }
    });
    let mut config = kube::Config::new(uri.parse().unwrap());
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let owner = OwnerReference {
        name: "lab".to_owned(),
        ..OwnerReference::default()
    };
    let secrets = ConfigSecrets::new(client, "instar-system", "lab", Some(owner));
    (secrets, server)
}

/// Reads one request, and answers it.
async fn answer(mut stream: TcpStream, server: Shared) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else {
            return;
        };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = vec![0; length.unwrap_or_default()];
    stream.read_exact(&mut body).await.unwrap();
    let (status, answer) = server.lock().unwrap().answer(&head, &body);
    let answer = answer.to_string();
    let text = format!(
        "HTTP/1.1 {status} Told\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    );
    // A caller that has gone needs no answer.
    let _ = stream.write_all(text.as_bytes()).await;
}

impl ApiServer {
    fn answer(&mut self, head: &str, body: &[u8]) -> (u16, Value) {
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        self.asked.push(format!("{method} {path}"));
        let refusal = |code: u16| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "No", "code": code});
            (code, status)
        };
        if let (Some(code), "POST" | "PUT") = (self.refuses, method) {
            return refusal(code);
        }
        match (method, &self.secret) {
            ("GET", None) => refusal(404),
            ("GET", Some(secret)) => (200, secret.clone()),
            ("DELETE", _) => {
                self.secret = None;
                (
                    200,
                    json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []}),
                )
            }
            (_, before) => {
                let mut secret: Value = serde_json::from_slice(body).unwrap();
                let version = |secret: &Value| secret["metadata"]["resourceVersion"].clone();
                if let Some(before) = before
                    && version(before) != version(&secret)
                {
                    return refusal(409);
                }
                secret["metadata"]["resourceVersion"] = json!(self.asked.len().to_string());
                self.secret = Some(secret.clone());
                (200, secret)
            }
        }
    }
}

fn configs(patch: &str) -> NodeConfigs {
    let change = ConfigChange::of_patches(vec![patch.to_owned()]);
    NodeConfigs {
        change: change.unwrap().release(),
        before: "version: v1alpha1 # ours\n".to_owned(),
        after: format!("version: v1alpha1\n{patch}\n"),
    }
}

fn node() -> MachineName {
    MachineName::from("n1")
}

#[tokio::test]
async fn configs_come_back_as_they_were_until_they_are_forgotten() {
    let (secrets, server) = serve().await;
    assert_eq!(secrets.known(&node()).await.unwrap(), None);
    for patch in ["machine: {type: worker}", "machine: {env: {A: b}}"] {
        secrets.keep(&node(), &configs(patch)).await.unwrap();
        assert_eq!(secrets.known(&node()).await.unwrap(), Some(configs(patch)));
    }
    let kept = server.lock().unwrap().secret.clone().unwrap();
    assert_eq!(kept["metadata"]["name"], "instar-config.n1");
    assert_eq!(kept["metadata"]["labels"][POOL_LABEL], "lab");
    assert_eq!(kept["metadata"]["ownerReferences"][0]["name"], "lab");
    secrets.forget().await.unwrap();
    assert_eq!(secrets.known(&node()).await.unwrap(), None);
    let asked = server.lock().unwrap().asked.clone();
    let forgot = asked.iter().find(|it| it.starts_with("DELETE")).unwrap();
    let all = "DELETE /api/v1/namespaces/instar-system/secrets?";
    assert!(
        forgot.starts_with(all) && forgot.contains("lab"),
        "{forgot}"
    );
}

#[tokio::test]
async fn what_the_api_server_never_takes_is_a_refusal_and_all_else_may_pass() {
    let (secrets, server) = serve().await;
    for (code, kind) in [
        (413, FailureKind::Refused),
        (422, FailureKind::Refused),
        (403, FailureKind::Unreachable),
        (409, FailureKind::Unreachable),
        (500, FailureKind::Unreachable),
    ] {
        server.lock().unwrap().refuses = Some(code);
        let kept = secrets.keep(&node(), &configs("{}")).await;
        let failure = kept.unwrap_err();
        assert_eq!(failure.kind(), kind, "{code}: {}", failure.chain());
        assert!(failure.chain().contains("n1"), "{}", failure.chain());
    }
}

#[tokio::test]
async fn a_secret_without_configs_is_named() {
    let (secrets, server) = serve().await;
    let other =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "instar-config.n1"}});
    server.lock().unwrap().secret = Some(other);
    let why = secrets.known(&node()).await.unwrap_err().chain();
    assert!(why.contains("Secret instar-config.n1"), "{why}");
    assert!(why.contains("delete it"), "{why}");
}
