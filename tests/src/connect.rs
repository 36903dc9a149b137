//! Connections to a guest behind QEMU's own network.

use std::time::Duration;

use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint, Error};

/// Until another connection is tried beside those that hang.
const PAUSE: Duration = Duration::from_millis(1500);

/// Connects. QEMU takes a connection at once, also for a guest whose network is not up, and asks the guest again only after 6 s,
/// then after 12: one that begins later is through before it.
pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Channel, Error> {
    let mut tries = JoinSet::new();
    loop {
        let endpoint = endpoint.clone();
        tries.spawn(async move { endpoint.connect().await });
        // None of them is aborted, and a panic of one is ours.
        if let Ok(Some(Ok(ended))) = tokio::time::timeout(PAUSE, tries.join_next()).await {
            return ended;
        }
    }
}
