//! Connections to a guest behind QEMU's own network.

use std::time::Duration;

use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint, Error};

/// Pause before another connection is tried beside the hanging ones.
const PAUSE: Duration = Duration::from_millis(1500);

/// A guest that reboots does not close its connections.
pub(crate) fn notices_silence(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(Duration::from_secs(10))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
}

/// Connects to this endpoint.
pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Channel, Error> {
    until_connected(|| {
        let endpoint = endpoint.clone();
        async move { endpoint.connect().await }
    })
    .await
}

/// Connects, with several tries side by side. QEMU accepts a connection at once, also for a guest whose network is not
/// up, and asks the guest again only after 6 s, then after 12: a later try gets through before that.
pub(crate) async fn until_connected<Connecting>(
    dial: impl Fn() -> Connecting,
) -> Result<Channel, Error>
where
    Connecting: Future<Output = Result<Channel, Error>> + Send + 'static,
{
    let mut tries = JoinSet::new();
    loop {
        tries.spawn(dial());
        // No try is aborted, and a panic of one is passed on.
        if let Ok(Some(Ok(ended))) = tokio::time::timeout(PAUSE, tries.join_next()).await {
            return ended;
        }
    }
}
