//! Downloads that break off, and pulls that are given up.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use instar_base::error_chain::chain;
use instar_values::Digest;

use super::pulling::{assert_empty, layer, noise, puller, store, store_without_blobs};
use super::registry::{Registry, mirrored};
use crate::{Limits, Progress};

/// Passes bytes on to the registry, and cuts the first `cuts` connections off after `after` bytes of a response.
fn flaky_proxy(registry: u16, cuts: usize, after: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let left = Arc::new(AtomicUsize::new(cuts));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", registry)).unwrap();
            let left = Arc::clone(&left);
            std::thread::spawn(move || {
                let mut upstream = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut upstream.0, &mut upstream.1));
                let mut passed = 0;
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = server.read(&mut buffer) {
                    passed += count;
                    let cut = passed > after
                        && left
                            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                            .is_ok();
                    if cut || client.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                // Either connection may be closed already.
                let _ = client.shutdown(std::net::Shutdown::Both);
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    port
}

#[tokio::test]
async fn broken_downloads_are_resumed() {
    let registry = Registry::start();
    registry
        .push("v1", "amd64", &[layer("b", &noise(1_000_000))])
        .await;
    let settings = |port| mirrored(&registry.host(), &[&format!("http://127.0.0.1:{port}")]);
    let (directory, store) = store_without_blobs();

    // Cut at 300 kB each time: without resuming, the whole blob never arrives.
    let flaky = puller(settings(flaky_proxy(registry.port, 3, 300_000)));
    let resolved = flaky.look_up(&registry.reference(":v1")).await.unwrap();
    let image = flaky
        .pull(&resolved, &store, &Limits::default())
        .await
        .unwrap();
    assert_eq!(
        fs::read(image.rootfs().join("b")).unwrap(),
        noise(1_000_000)
    );
    store.remove(image.digest()).await.unwrap();

    // No progress at all: given up after the allowed attempts, with the reason.
    let dead = puller(settings(flaky_proxy(registry.port, usize::MAX, 2_000)));
    let error = dead
        .pull(&resolved, &store, &Limits::default())
        .await
        .unwrap_err();
    assert!(error.is_unreachable());
    let said = chain(&error);
    assert!(
        said.contains("reading the blob failed") && said.contains("broke"),
        "{said}"
    );
    assert_empty(&directory);
}

/// Sends this blob whole, in a chunk that no end follows, and nothing from a position in it; passes other requests on to the registry.
fn server_that_never_ends(registry: u16, blob: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // A client may be gone.
            let _ = answer(client.unwrap(), registry, &blob);
        }
    });
    port
}

fn answer(mut client: TcpStream, registry: u16, blob: &[u8]) -> std::io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte)? == 1 {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    if !head.contains(&Digest::of(blob).to_string()) {
        let mut server = TcpStream::connect(("127.0.0.1", registry))?;
        let last = head.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
        server.write_all(last.as_bytes())?;
        std::io::copy(&mut server, &mut client)?;
    } else if head.to_ascii_lowercase().contains("\r\nrange:") {
        let none = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n";
        client.write_all(none.as_bytes())?;
    } else {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        write!(client, "{chunked}{:x}\r\n", blob.len())?;
        client.write_all(blob)?;
        client.write_all(b"\r\n")?;
    }
    client.shutdown(std::net::Shutdown::Both)
}

#[tokio::test]
async fn a_download_that_breaks_off_behind_its_last_byte_is_whole() {
    let registry = Registry::start();
    let layer = layer("b", &noise(300_000));
    registry
        .push("v1", "amd64", std::slice::from_ref(&layer))
        .await;
    let port = server_that_never_ends(registry.port, layer.1);
    let (_directory, store) = store_without_blobs();
    let puller = puller(mirrored(
        &registry.host(),
        &[&format!("http://127.0.0.1:{port}")],
    ));
    let resolved = puller.look_up(&registry.reference(":v1")).await.unwrap();
    let image = puller.pull(&resolved, &store, &Limits::default()).await;
    let image = image.unwrap();
    let found = fs::read(image.rootfs().join("b")).unwrap();
    assert!(found == noise(300_000));
}

#[tokio::test]
async fn a_pull_that_is_given_up_leaves_nothing() {
    let registry = Registry::start();
    registry
        .push("v1", "amd64", &[layer("b", &noise(3_000_000))])
        .await;
    let puller = puller(registry.settings());
    let (directory, store) = store();
    let resolved = puller.look_up(&registry.reference(":v1")).await.unwrap();
    let started = tokio::sync::Notify::new();
    let notify = |_: Progress| started.notify_one();
    let limits = Limits::default();
    tokio::select! {
        _ = puller.pull_with_progress(&resolved, &store, &limits, &notify) => panic!("not that fast"),
        () = started.notified() => {}
    }
    assert_empty(&directory);
}
