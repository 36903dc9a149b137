//! Listening sockets besides the API's, which machined makes and apid serves: for workers' certificates, and for metrics.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use instar_api::CERTIFICATES_PORT;
use tokio::sync::watch;

use crate::sys::listen;

/// The socket for workers; clones share it.
#[derive(Debug, Clone)]
pub struct WorkersPort(Arc<OwnedFd>);

/// The socket for metrics; clones share it.
#[derive(Debug, Clone)]
pub struct MetricsPort {
    socket: Arc<OwnedFd>,
    spec: MetricsSpec,
}

/// Where metrics are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsSpec {
    /// The address and port.
    pub listen: SocketAddr,
    /// Whether clients need a certificate; otherwise there is no TLS.
    pub with_tls: bool,
}

impl AsFd for WorkersPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for MetricsPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl MetricsPort {
    /// Whether clients need a certificate.
    pub fn with_tls(&self) -> bool {
        self.spec.with_tls
    }
}

/// Opens the port for workers, or closes it. Returns whether it is as it should be.
pub fn follow_workers(port: &watch::Sender<Option<WorkersPort>>, is_wanted: bool) -> bool {
    if port.borrow().is_some() == is_wanted {
        return true;
    }
    if !is_wanted {
        port.send_replace(None);
        return true;
    }
    match listen::on_all_addresses(CERTIFICATES_PORT) {
        Ok(socket) => {
            tracing::info!("certificates for workers are signed on port {CERTIFICATES_PORT}");
            port.send_replace(Some(WorkersPort(Arc::new(socket))));
            true
        }
        Err(error) => {
            tracing::warn!(
                "no certificates for workers yet: cannot listen on port {CERTIFICATES_PORT}: {error}"
            );
            false
        }
    }
}

/// The same for metrics.
pub fn follow_metrics(
    port: &watch::Sender<Option<MetricsPort>>,
    wanted: Option<MetricsSpec>,
) -> bool {
    if port.borrow().as_ref().map(|port| port.spec) == wanted {
        return true;
    }
    // The previous socket is closed first: it may be the same address.
    port.send_replace(None);
    let Some(spec) = wanted else {
        return true;
    };
    match TcpListener::bind(spec.listen) {
        Ok(socket) => {
            tracing::info!("metrics are served at {}", spec.listen);
            let socket = Arc::new(OwnedFd::from(socket));
            port.send_replace(Some(MetricsPort { socket, spec }));
            true
        }
        Err(error) => {
            tracing::warn!("no metrics yet: cannot listen at {}: {error}", spec.listen);
            false
        }
    }
}
