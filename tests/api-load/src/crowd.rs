//! Many connections: idle ones, and short ones.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::node::{Node, answers};

/// Number of idle connections.
const IDLE: usize = 1_000;
/// Longer than apid waits before it counts a caller as idle.
const SETTLING: Duration = Duration::from_secs(5);
/// Number of short connections in a minute.
const CONNECTS: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);

/// The measurement of idle connections.
pub(crate) struct Idle {
    pub(crate) connections: usize,
    /// Memory of apid and machined for them, together.
    pub(crate) kib: f64,
}

/// Opens connections that have each asked for the version once, and measures their memory.
pub(crate) async fn idle_connections(node: &Node, before_kib: f64) -> anyhow::Result<Idle> {
    let mut channels = Vec::with_capacity(IDLE);
    for number in 0..IDLE {
        let channel = node
            .channel()
            .await
            .with_context(|| format!("connection {number}"))?;
        anyhow::ensure!(answers(&channel).await, "connection {number} has no answer");
        channels.push(channel);
    }
    // apid frees a caller's resources when the caller is idle.
    tokio::time::sleep(SETTLING).await;
    Ok(Idle {
        connections: channels.len(),
        kib: node.resident_kib()? - before_kib,
    })
}

/// The measurement of short connections.
pub(crate) struct Busy {
    pub(crate) connects: usize,
    pub(crate) failed: usize,
}

/// Connects, asks for the version and leaves, evenly over a minute; one more connection is open and gets answers
/// meanwhile.
pub(crate) async fn connects_for_a_minute(node: &Node) -> anyhow::Result<Busy> {
    let endpoint = node.endpoint()?;
    let steady = node.channel().await?;
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    let mut failed = 0;
    for number in 0..CONNECTS {
        let due = MINUTE.mul_f64(number as f64 / CONNECTS as f64);
        tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
        let endpoint = endpoint.clone();
        callers.spawn(async move {
            match endpoint.connect().await {
                Ok(channel) => answers(&channel).await,
                Err(_) => false,
            }
        });
        while let Some(done) = callers.try_join_next() {
            failed += usize::from(!done?);
        }
        if number % 100 == 0 {
            failed += usize::from(!answers(&steady).await);
        }
    }
    while let Some(done) = callers.join_next().await {
        failed += usize::from(!done?);
    }
    let minutes = begun.elapsed().as_secs_f64() / MINUTE.as_secs_f64();
    Ok(Busy {
        connects: (CONNECTS as f64 / minutes) as usize,
        failed,
    })
}
