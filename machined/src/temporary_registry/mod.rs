//! The temporary registry: serves images of the store, read-only and for a limited time, to containerd or to other machines.
//!
//! Its content is fixed when it begins ([`Offer`]), so that nothing else of the store is ever given away. A path is a value
//! (`request.rs`), a blob is compared with its digest while it is sent (`blob.rs`), and the server is hyper's (`server.rs`). It ends with its
//! time, by a call, or with the generation.
//!
//! The decision: HTTP without credentials, on loopback unless another address is chosen; clients compare digests. With TLS on request, by the
//! certificate of the node's API, which its authority has issued: other machines of the site know that authority already. A certificate that
//! is made for the moment, which nobody knows, would be switched off by all clients.

mod blob;
mod offer;
mod request;
mod server;

pub use offer::{NotServable, Offer};

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::base::lock::Lock as _;
use crate::store::{Resource, Store};
use server::Figures;

/// Interval between two updates of the figures.
const SHOWN_EVERY: Duration = Duration::from_secs(5);

/// Longer than any machine runs.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The registry that is served at present, as `get registries` shows it. Its id is its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemporaryRegistryFact {
    /// When it ends.
    pub until: SystemTime,
    /// The images, as `REPOSITORY:TAG`.
    pub images: Vec<String>,
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes of blobs that were sent.
    pub bytes: u64,
    /// Whether it has TLS.
    pub tls: bool,
}

impl Resource for TemporaryRegistryFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "TemporaryRegistries.instar.dev";
}

/// Why no registry is served.
#[derive(Debug, thiserror::Error)]
pub enum CannotServe {
    /// There is one.
    #[error("images are served at {0} already; stop that first")]
    Busy(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

/// The place of the one temporary registry.
#[derive(Debug, Default)]
pub struct TemporaryRegistry {
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    address: SocketAddr,
    task: AbortHandle,
}

/// The resource; it goes when the server ends, whatever ends it.
struct Shown {
    store: Store,
    id: String,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.store.remove::<TemporaryRegistryFact>(&self.id);
        tracing::info!("images are no longer served at {}", self.id);
    }
}

impl TemporaryRegistry {
    /// Serves images at this address for so long, with these settings of TLS or without TLS; returns the address, whose port the kernel has chosen if it was 0.
    ///
    /// # Errors
    /// There is one already, or the address cannot be listened on.
    pub fn serve(
        &self,
        store: &Store,
        offer: Offer,
        address: SocketAddr,
        time: Duration,
        tls: Option<ServerConfig>,
    ) -> Result<SocketAddr, CannotServe> {
        let mut running = self.running.locked();
        if let Some(running) = running.as_ref().filter(|it| !it.task.is_finished()) {
            return Err(CannotServe::Busy(running.address));
        }
        let failed = |source| CannotServe::Listen { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let shown = Shown {
            store: store.clone(),
            id: address.to_string(),
        };
        tracing::info!(
            "{} images are served at {address} for {time:?}",
            offer.len()
        );
        let task = crate::base::task::spawn(run(listener, tls, offer, shown, time)).abort_handle();
        *running = Some(Running { address, task });
        Ok(address)
    }

    /// Ends the registry, with its connections; returns its address, if there was one.
    pub fn stop(&self) -> Option<SocketAddr> {
        let running = self.running.locked().take()?;
        let was_running = !running.task.is_finished();
        running.task.abort();
        was_running.then_some(running.address)
    }
}

/// Serves images without TLS for as long as it is polled.
pub async fn serve_on(listener: TcpListener, offer: Offer) {
    let end = Instant::now() + FOR_EVER;
    server::serve(listener, None, Arc::new(offer), Arc::default(), end).await;
}

async fn run(
    listener: TcpListener,
    tls: Option<ServerConfig>,
    offer: Offer,
    shown: Shown,
    time: Duration,
) {
    let (figures, offer) = (Arc::new(Figures::default()), Arc::new(offer));
    let fact = TemporaryRegistryFact {
        until: SystemTime::now() + time,
        images: offer.names(),
        requests: 0,
        bytes: 0,
        tls: tls.is_some(),
    };
    let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    let until = Instant::now() + time;
    let serving = server::serve(listener, tls, offer, figures.clone(), until);
    tokio::select! {
        () = serving => {}
        () = show(&shown, fact, &figures) => {}
    }
}

/// Shows the figures, for as long as it is polled.
async fn show(shown: &Shown, fact: TemporaryRegistryFact, figures: &Figures) {
    loop {
        let fact = TemporaryRegistryFact {
            requests: figures.requests.load(Ordering::Relaxed),
            bytes: figures.bytes.load(Ordering::Relaxed),
            ..fact.clone()
        };
        shown.store.put(&shown.id, fact);
        tokio::time::sleep(SHOWN_EVERY).await;
    }
}

#[cfg(test)]
mod tests;
