//! Many connections: that stay and do nothing, and that come and go.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use crate::load::answers;
use crate::node::Node;

/// Connections that stay.
const IDLE: usize = 1_000;
/// Longer than apid waits before it takes a caller for idle.
const SETTLING: Duration = Duration::from_secs(5);
/// Connections that come and go, in a minute.
const CONNECTS: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);

/// What stays.
pub(crate) struct Idle {
    pub(crate) connections: usize,
    /// What they cost apid and machined together.
    pub(crate) kib: f64,
}

/// Opens connections that have each asked for the version once, and looks what they cost.
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
    // apid lets go of what a caller needs only while it asks.
    tokio::time::sleep(SETTLING).await;
    Ok(Idle {
        connections: channels.len(),
        kib: node.resident_kib()? - before_kib,
    })
}

/// What came and went.
pub(crate) struct Busy {
    pub(crate) connects: usize,
    pub(crate) failed: usize,
}

/// Connects, asks for the version and leaves, evenly over a minute; beside it one connection goes on to be answered.
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
