//! Connections of unauthenticated clients.

use std::time::Instant;

use anyhow::{Context as _, Result};
use instar_tests::{Node, Outcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::newcomers_are_served;
use crate::PATIENCE;

/// More connections than there are places for unauthenticated clients.
pub(super) const SILENT: usize = 600;

/// Number of those places.
const PLACES: usize = 512;

const TALKERS: usize = 100;

/// Number of quick connections. QEMU limits their rate; `make bench` opens ten thousand a minute.
const QUICK: usize = 500;

/// Connections that start a handshake and send nothing more.
pub(super) async fn silent_connections_keep_nobody_out(node: &Node) -> Outcome {
    let silent = connect_silently(node, SILENT).await?;
    let begun = Instant::now();
    newcomers_are_served(node, "beside silent connections").await?;
    let took = begun.elapsed().as_millis();
    println!("answered beside {SILENT} silent connections after {took} ms");
    some_are_ended(silent).await
}

/// The node closes some connections, long before the timeout of a handshake.
async fn some_are_ended(silent: Vec<TcpStream>) -> Outcome {
    let mut ends = JoinSet::new();
    for mut stream in silent {
        ends.spawn(async move {
            // The connection may end with or without an error.
            let _ = stream.read_to_end(&mut Vec::new()).await;
            stream
        });
    }
    for _ in PLACES..SILENT {
        let ended = tokio::time::timeout(PATIENCE, ends.join_next()).await;
        ended.context("too many silent connections stay")?;
    }
    Ok(())
}

/// Connects, and waits until QEMU has accepted. QEMU's listening sockets have two places for connections that it has
/// not accepted, and further clients wait for seconds: that would measure TCP, not the node.
async fn connect(endpoint: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(endpoint).await?;
    let port = stream.peer_addr()?.port();
    while waits_to_be_accepted(port)? {
        tokio::task::yield_now().await;
    }
    Ok(stream)
}

/// Whether the socket that listens on this port has connections that QEMU has not accepted: `rx_queue` of its line in
/// `/proc/net/tcp`, with the columns local address, remote address, state (0A listens) and `tx_queue:rx_queue`, in
/// hexadecimal.
fn waits_to_be_accepted(port: u16) -> Result<bool> {
    let sockets = std::fs::read_to_string("/proc/net/tcp")?;
    let port = format!(":{port:04X}");
    let listening = sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, "0A", queues, ..] = fields[..] else {
            return None;
        };
        local
            .ends_with(&port)
            .then(|| !queues.ends_with(":00000000"))
    });
    listening.with_context(|| format!("nothing listens on port {port}"))
}

/// Sends the first byte of a TLS handshake, and nothing more.
pub(super) async fn connect_silently(node: &Node, count: usize) -> Result<Vec<TcpStream>> {
    let endpoint = node.endpoint()?;
    let mut silent = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connect(&endpoint).await?;
        stream.write_all(&[0x16]).await?;
        silent.push(stream);
    }
    Ok(silent)
}

pub(super) async fn garbage_ends_its_connection(node: &Node) -> Outcome {
    let endpoint = node.endpoint()?;
    for number in 0..TALKERS {
        let mut stream = connect(&endpoint).await?;
        // The node may cut the connection during the write.
        let _ = stream.write_all(&garbage(number)).await;
        let mut answer = Vec::new();
        // The connection may end with or without an error, but in time.
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .with_context(|| format!("connection {number} with garbage stays open"))?;
    }
    newcomers_are_served(node, "after garbage").await
}

/// Bytes that are not TLS, or a TLS record without a handshake in it.
fn garbage(number: usize) -> Vec<u8> {
    match number % 3 {
        0 => b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(),
        1 => (0..4096_usize).map(|at| (at * 7 + number) as u8).collect(),
        // A record of the largest length, full of zeros.
        _ => [&[0x16, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat(),
    }
}

pub(super) async fn quick_connects_keep_nobody_out(node: &Node) -> Outcome {
    let endpoint = node.endpoint()?;
    for _ in 0..QUICK {
        drop(connect(&endpoint).await?);
    }
    newcomers_are_served(node, "after quick connects").await
}
