//! A TCP server on 127.0.0.1 that guests reach: a thread for each connection.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use instar_qemu::{PortLease, lease_port};

use crate::HOST_FOR_GUEST;

/// The server, until this value is dropped.
#[derive(Debug)]
pub(crate) struct LocalServer {
    lease: PortLease,
    stopped: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl LocalServer {
    /// Starts a server. `serve` is called for each connection, which ends when `serve` returns.
    pub(crate) fn start(
        serve: impl Fn(&TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        let lease = lease_port()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, lease.port()))
            .with_context(|| format!("cannot listen on port {}", lease.port()))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let accepting = stopped.clone();
        let serve = Arc::new(serve);
        let listener = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if accepting.load(Ordering::Acquire) {
                    return;
                }
                let Ok(connection) = connection else { continue };
                let serve = serve.clone();
                // A client that leaves in the middle is no failure of the server.
                std::thread::spawn(move || drop(serve(&connection)));
            }
        });
        Ok(Self {
            lease,
            stopped,
            listener: Some(listener),
        })
    }

    /// The server's port.
    pub(crate) fn port(&self) -> u16 {
        self.lease.port()
    }

    /// The server's address in a guest: `10.0.2.2:PORT`.
    pub(crate) fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.port())
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the listener, which then sees that it has to end.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port()));
        if let Some(listener) = self.listener.take() {
            // A thread that panicked has printed why.
            let _ = listener.join();
        }
    }
}
