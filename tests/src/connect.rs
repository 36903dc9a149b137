//! Connections to a guest behind QEMU's own network.

use std::time::Duration;

use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint, Error};

/// Until another connection is tried beside those that hang.
const PAUSE: Duration = Duration::from_millis(1500);

/// Connects to this endpoint.
pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Channel, Error> {
    until_connected(|| {
        let endpoint = endpoint.clone();
        async move { endpoint.connect().await }
    })
    .await
}

/// Connects. QEMU takes a connection at once, also for a guest whose network is not up, and asks the guest again only after 6 s,
/// then after 12: one that begins later is through before it.
pub(crate) async fn until_connected<Connecting>(
    dial: impl Fn() -> Connecting,
) -> Result<Channel, Error>
where
    Connecting: Future<Output = Result<Channel, Error>> + Send + 'static,
{
    let mut tries = JoinSet::new();
    loop {
        tries.spawn(dial());
        // None of them is aborted, and a panic of one is ours.
        if let Ok(Some(Ok(ended))) = tokio::time::timeout(PAUSE, tries.join_next()).await {
            return ended;
        }
    }
}
