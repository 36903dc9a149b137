//! Listening sockets besides the API's, which machined makes and apid serves: for workers' certificates, and for metrics.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use instar_api::CERTIFICATES_PORT;
use tokio::sync::watch;

use crate::left_sockets::{LeftSockets, Socket};
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

/// Opens the port for workers, or closes it. Returns whether it is as it should be. `left`: the sockets that the generation before has left.
pub fn follow_workers(
    port: &watch::Sender<Option<WorkersPort>>,
    left: &LeftSockets,
    is_wanted: bool,
) -> bool {
    if port.borrow().is_some() == is_wanted {
        return true;
    }
    if !is_wanted {
        port.send_replace(None);
        return true;
    }
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), CERTIFICATES_PORT);
    let opened = match left.take_at(Socket::Workers, address) {
        Some(socket) => Ok(socket),
        None => listen::on_all_addresses(CERTIFICATES_PORT),
    };
    match opened {
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
    left: &LeftSockets,
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
    let opened = match left.take_at(Socket::Metrics, spec.listen) {
        Some(socket) => Ok(socket),
        None => TcpListener::bind(spec.listen).map(OwnedFd::from),
    };
    match opened {
        Ok(socket) => {
            tracing::info!("metrics are served at {}", spec.listen);
            let socket = Arc::new(socket);
            port.send_replace(Some(MetricsPort { socket, spec }));
            true
        }
        Err(error) => {
            tracing::warn!("no metrics yet: cannot listen at {}: {error}", spec.listen);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;
    use std::net::TcpStream;

    fn spec(listen: SocketAddr) -> MetricsSpec {
        MetricsSpec {
            listen,
            with_tls: false,
        }
    }

    /// A socket for metrics that the generation before has left, and its address.
    fn left_one() -> (LeftSockets, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut kept = BTreeMap::from([("socket.metrics".to_owned(), listener.into())]);
        (LeftSockets::find(&mut kept), address)
    }

    #[test]
    fn who_asks_for_metrics_during_a_change_of_generations_waits() {
        let (left, address) = left_one();
        let port = watch::channel(None).0;
        // The config comes later.
        assert!(follow_metrics(&port, &left, None));
        let _waiting = TcpStream::connect(address).unwrap();
        assert!(follow_metrics(&port, &left, Some(spec(address))));
        let opened = port.borrow().as_ref().unwrap().socket.try_clone().unwrap();
        TcpListener::from(opened).accept().unwrap();
        // The port is closed as always.
        assert!(follow_metrics(&port, &left, None));
        TcpStream::connect(address).unwrap_err();
    }

    // No other test takes ports of this address in between.
    #[test]
    fn metrics_at_another_address_get_a_socket_of_their_own() {
        let (left, before) = left_one();
        let wanted = SocketAddr::new([127, 0, 0, 78].into(), before.port());
        let port = watch::channel(None).0;
        assert!(follow_metrics(&port, &left, Some(spec(wanted))));
        TcpStream::connect(wanted).unwrap();
        TcpStream::connect(before).unwrap_err();
    }
}
