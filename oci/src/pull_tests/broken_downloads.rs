//! Downloads that break off, and pulls that are given up.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use instar_base::error_chain::chain;

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
