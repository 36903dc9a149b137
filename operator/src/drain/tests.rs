//! Drains by an API server in this process, which refuses, fails, or does not answer.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);
/// A drain may take this much longer on a busy computer.
const SLACK: Duration = Duration::from_secs(4);

/// The answer to an eviction.
#[derive(Clone, Copy, PartialEq)]
enum Evictions {
    /// An HTTP status and a message.
    Refused(u16, &'static str),
    /// None, ever.
    Silent,
    /// The pod leaves.
    Granted,
}

/// Pods on a node, until they are evicted or deleted.
struct ApiServer {
    evictions: Evictions,
    pods: Vec<&'static str>,
    /// A pod whose deletion is denied.
    kept: Option<&'static str>,
    /// Lists fail until then.
    lists_from: Option<Instant>,
    /// Watches are denied, and else have no answer.
    denies_watches: bool,
    evicted: usize,
    deleted: usize,
    watched: usize,
}

type Shared = Arc<Mutex<ApiServer>>;

async fn serve(evictions: Evictions) -> (Client, Shared) {
    let server = Arc::new(Mutex::new(ApiServer {
        evictions,
        pods: vec!["web"],
        kept: None,
        lists_from: None,
        denies_watches: false,
        evicted: 0,
        deleted: 0,
        watched: 0,
    }));
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
    (Client::try_from(config).unwrap(), server)
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
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|it| it.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.unwrap();
    let Some((status, body)) = reply(&head, &server) else {
        // The connection stays open.
        return std::future::pending().await;
    };
    let (body, length) = (body.to_string(), body.to_string().len());
    let reply = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    // The client may have given up.
    let _ = stream.write_all(reply.as_bytes()).await;
}

fn reply(head: &str, server: &Shared) -> Option<(u16, Value)> {
    let mut server = server.lock().unwrap();
    let failure = |code: u16, message: &str| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": "X"});
    if head.starts_with("post") && head.contains("/eviction") {
        server.evicted += 1;
        return match server.evictions {
            Evictions::Refused(code, message) => Some((code, failure(code, message))),
            Evictions::Silent => None,
            Evictions::Granted => {
                server.pods.clear();
                Some((
                    201,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
                ))
            }
        };
    }
    if head.starts_with("delete") {
        if let Some(kept) = server.kept
            && head.contains(&format!("/pods/{kept}"))
        {
            return Some((500, failure(500, "a webhook says no")));
        }
        server
            .pods
            .retain(|pod| !head.contains(&format!("/pods/{pod}")));
        server.deleted += 1;
        return Some((
            200,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
        ));
    }
    if head.contains("watch=") {
        server.watched += 1;
        return server.denies_watches.then(|| (403, failure(403, "no")));
    }
    if server.lists_from.is_some_and(|from| Instant::now() < from) {
        return Some((500, failure(500, "etcd is gone")));
    }
    let pods = server.pods.iter();
    let items: Vec<Value> = pods.map(|name| json!({"metadata": {"name": name, "namespace": "shop", "resourceVersion": "1"}, "spec": {"containers": []}})).collect();
    Some((
        200,
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
    ))
}

/// Drains the node, and returns how long that took.
async fn drain(client: &Client, timeout: Duration, force: bool) -> (Result<(), Failure>, Duration) {
    let begun = Instant::now();
    let draining = Draining {
        client,
        evictions: client,
        namespace: "instar-system",
        node: "n1",
        drain: Drain { timeout, force },
        log: &|_| {},
    };
    (draining.empty().await, begun.elapsed())
}

#[tokio::test]
async fn refused_evictions_end_with_the_time_of_the_policy_and_the_reason() {
    for (evictions, why) in [
        (
            Evictions::Refused(429, "the budget needs 1 pod"),
            "the budget needs 1 pod",
        ),
        (Evictions::Refused(500, "etcd is gone"), "etcd is gone"),
        (Evictions::Silent, "they do not end"),
    ] {
        let (client, server) = serve(evictions).await;
        let (drained, took) = drain(&client, TIMEOUT, false).await;
        let failure = drained.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Refused);
        let told = failure.chain();
        assert!(
            told.contains("within 2 s: shop/web: ") && told.contains(why),
            "{told}"
        );
        assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{why}: {took:?}");
        assert_eq!(server.lock().unwrap().deleted, 0);
    }
}

#[tokio::test]
async fn a_policy_with_force_deletes_what_was_refused() {
    for code in [429, 500] {
        let (client, server) = serve(Evictions::Refused(code, "no")).await;
        let (drained, took) = drain(&client, TIMEOUT, true).await;
        drained.unwrap();
        assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
        assert_eq!(server.lock().unwrap().deleted, 1);
    }
}

#[tokio::test]
async fn a_refused_eviction_is_tried_again_until_it_is_granted() {
    let (client, server) = serve(Evictions::Refused(429, "the budget needs 1 pod")).await;
    let later = server.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(1)).await;
        later.lock().unwrap().evictions = Evictions::Granted;
    });
    let (drained, took) = drain(&client, Duration::from_secs(60), false).await;
    drained.unwrap();
    assert!(
        took >= EVICT_AGAIN && took < EVICT_AGAIN + SLACK,
        "{took:?}"
    );
    let server = server.lock().unwrap();
    assert_eq!((server.evicted, server.deleted), (2, 0));
}

#[tokio::test]
async fn a_drain_goes_on_after_lists_that_failed() {
    let (client, server) = serve(Evictions::Granted).await;
    server.lock().unwrap().lists_from = Some(Instant::now() + Duration::from_secs(1));
    let (drained, took) = drain(&client, Duration::from_secs(60), false).await;
    drained.unwrap();
    assert!(
        took >= EVICT_AGAIN && took < EVICT_AGAIN + SLACK,
        "{took:?}"
    );
    assert_eq!(server.lock().unwrap().evicted, 1);
}

#[tokio::test]
async fn lists_that_fail_to_the_end_are_a_definite_failure() {
    let (client, server) = serve(Evictions::Granted).await;
    server.lock().unwrap().lists_from = Some(Instant::now() + Duration::from_secs(600));
    for force in [false, true] {
        let (drained, took) = drain(&client, TIMEOUT, force).await;
        let failure = drained.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Refused);
        let told = failure.chain();
        assert!(told.contains("etcd is gone"), "{told}");
        assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
    }
}

#[tokio::test]
async fn a_deletion_that_is_denied_keeps_no_other_pod_and_is_a_definite_failure() {
    let (client, server) = serve(Evictions::Refused(429, "no")).await;
    {
        let mut server = server.lock().unwrap();
        (server.pods, server.kept) = (vec!["db", "web"], Some("db"));
    }
    let (drained, _) = drain(&client, TIMEOUT, true).await;
    let failure = drained.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Refused);
    let told = failure.chain();
    assert!(
        told.contains("shop/db cannot be deleted") && told.contains("a webhook says no"),
        "{told}"
    );
    assert_eq!(server.lock().unwrap().pods, ["db"]);
}

#[tokio::test]
async fn a_watch_that_is_denied_is_not_asked_for_all_the_time() {
    let (client, server) = serve(Evictions::Refused(429, "no")).await;
    server.lock().unwrap().denies_watches = true;
    let (drained, _) = drain(&client, TIMEOUT, false).await;
    drained.unwrap_err();
    let watched = server.lock().unwrap().watched;
    assert!((1..=10).contains(&watched), "{watched}");
}
