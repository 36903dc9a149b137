//! Mirrors of a registry.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use instar_base::error_chain::chain;
use instar_values::{Digest, ImageReference};
use tokio::time::timeout;

use super::pulling::{layer, noise, puller, puller_with, store};
use super::registry::{Registry, mirrored};
use super::signatures::sign;
use crate::verification::test_signing::{Signer, payload};
use crate::{Limits, Registries};

#[tokio::test]
async fn mirrors_are_tried_in_order_and_all_failures_are_told() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"x")]).await;
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (dead, alive) = (
        format!("http://{dead}"),
        format!("http://{}", registry.host()),
    );
    let reference: ImageReference = "registry.example/app:v1".parse().unwrap();
    let resolved = puller(mirrored("registry.example", &[&dead, &alive]))
        .resolve(&reference)
        .await
        .unwrap();
    assert_eq!(resolved.reference, reference);
    let any = puller(mirrored("*", &[&dead, &alive]));
    any.resolve(&reference).await.unwrap();
    let missing: ImageReference = "registry.example/app:v9".parse().unwrap();
    let said = chain(&any.resolve(&missing).await.unwrap_err());
    assert!(
        said.contains("connecting to") && said.contains("MANIFEST_UNKNOWN"),
        "{said}"
    );
    let nobody = puller(mirrored("registry.example", &[]));
    let said = chain(&nobody.resolve(&reference).await.unwrap_err());
    assert!(said.contains("there is nobody to ask"), "{said}");
    // Without a mirror that says http://, a registry is spoken to over TLS only.
    let said = chain(
        &puller(Registries::default())
            .resolve(&registry.reference(":v1"))
            .await
            .unwrap_err(),
    );
    assert!(said.contains("the TLS handshake with"), "{said}");
}

/// Callers that have the image already ask for 10 s: the registry behind the mirror has to answer within them, about the image and its signature.
#[tokio::test]
async fn a_silent_mirror_keeps_nobody_from_the_registry_behind_it() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"x")]).await;
    let name = registry.reference(":v1");
    let alone = puller(registry.settings()).resolve(&name).await.unwrap();
    let signer = Signer::ecdsa();
    let signature = signer.simple(payload(alone.digest()));
    sign(&registry, alone.digest(), &[signature]).await;
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = [
        format!("http://{}", silent.local_addr().unwrap()),
        format!("http://{}", registry.host()),
    ];
    let settings = mirrored(&registry.host(), &urls.each_ref().map(String::as_str));
    let puller = puller_with(settings, signer.policy());
    let (_directory, store) = store();
    let all = async {
        let verified = puller.look_up(&name).await.unwrap();
        let limits = Limits::default();
        puller.pull(&verified, &store, &limits).await.unwrap()
    };
    let pulled = timeout(Duration::from_secs(10), all).await.unwrap();
    assert_eq!(pulled.digest(), alone.digest());
}

/// A mirror that has one blob, and gives each client one byte of it before it hangs up; and the number of these clients.
fn drips(blob: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let lines = BufReader::new(client.try_clone().unwrap()).lines();
            let lines = lines.map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let head = head.join("\n").to_lowercase();
            if !head.contains(&Digest::of(&blob).to_string()) {
                let nothing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                client.write_all(nothing.as_bytes()).unwrap();
                continue;
            }
            counted.fetch_add(1, Ordering::Relaxed);
            let range = head.split_once("range: bytes=").map(|(_, rest)| rest);
            let from = range.and_then(|range| range.split('-').next()?.parse().ok());
            let from: usize = from.unwrap_or(0);
            let status = match from {
                0 => "200 OK",
                _ => "206 Partial Content",
            };
            let length = blob.len() - from;
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
            client.write_all(head.as_bytes()).unwrap();
            client.write_all(&blob[from..=from]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    (url, asked)
}

/// Each answer gets a little further, and none of them is as slow for a minute as no answer may be.
#[tokio::test]
async fn a_mirror_that_drips_over_many_answers_is_left_for_the_registry_behind_it() {
    let registry = Registry::start();
    let content = noise(100_000);
    let layer = layer("a", &content);
    let blob = layer.1.clone();
    registry.push("v1", "amd64", &[layer]).await;
    let (url, asked) = drips(blob);
    let urls = [url, format!("http://{}", registry.host())];
    let settings = mirrored(&registry.host(), &urls.each_ref().map(String::as_str));
    let puller = puller(settings);
    let (_directory, store) = store();
    let name = registry.reference(":v1");
    let verified = puller.look_up(&name).await.unwrap();
    let pulled = puller.pull(&verified, &store, &Limits::default()).await;
    let unpacked = fs::read(pulled.unwrap().rootfs().join("a")).unwrap();
    assert_eq!(unpacked, content);
    // As often as after no byte at all.
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}
