//! Listening sockets that machined hands over while apid runs, replaces, and takes back.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// A listening socket.
pub(super) trait Listening: Clone {
    /// A connection, with what is known of it.
    type Connection;

    /// Accepts the next connection; none is lost when this is given up.
    fn connection(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Listening for Arc<TcpListener> {
    type Connection = (TcpStream, SocketAddr);

    async fn connection(&self) -> io::Result<Self::Connection> {
        self.accept().await
    }
}

impl Listening for Arc<UnixListener> {
    type Connection = UnixStream;

    async fn connection(&self) -> io::Result<Self::Connection> {
        let (stream, _) = self.accept().await?;
        Ok(stream)
    }
}

/// Takes a socket that listens at an address of the network.
pub(super) fn tcp(socket: OwnedFd) -> io::Result<Arc<TcpListener>> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(Arc::new(TcpListener::from_std(listener)?))
}

/// Takes a socket that listens at a path.
pub(super) fn unix(socket: OwnedFd) -> io::Result<Arc<UnixListener>> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(Arc::new(UnixListener::from_std(listener)?))
}

/// Accepts the next connection on the newest socket, once there is one, with a place in each of these semaphores. `what` is for the log.
pub(super) async fn next_connection<L: Listening>(
    listeners: &mut watch::Receiver<Option<L>>,
    places: &[&Arc<Semaphore>],
    what: &str,
) -> (L::Connection, Vec<OwnedSemaphorePermit>) {
    loop {
        let newest = listeners.borrow_and_update().clone();
        let Some(listener) = newest else {
            if listeners.changed().await.is_err() {
                // No socket will come: apid is about to end.
                std::future::pending::<()>().await;
            }
            continue;
        };
        let mut held = Vec::new();
        for &places in places {
            // No semaphore is ever closed.
            held.extend(Arc::clone(places).acquire_owned().await);
        }
        let accepted = tokio::select! {
            accepted = listener.connection() => accepted,
            Ok(()) = listeners.changed() => continue,
        };
        match accepted {
            Ok(connection) => return (connection, held),
            Err(error) => {
                eprintln!("apid: accept {what}: {error}");
                // As for the network: descriptors or memory are used up.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
