//! Receivers of forwarded logs on this host, which a guest reaches at 10.0.2.2.

use std::io::{self, BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use instar_base::lock::Lock as _;
use instar_qemu::{PortLease, lease_port};

use crate::HOST_FOR_GUEST;
use crate::local_server::LocalServer;

/// The lines that came so far; clones share them.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<serde_json::Value>>>);

impl Lines {
    /// A line that is no JSON is kept as text, so that tests see it.
    fn add(&self, line: &str) {
        let parsed = serde_json::from_str(line).unwrap_or_else(|_| line.into());
        let mut lines = self.0.locked();
        lines.push(parsed);
    }
}

/// A receiver, until this value is dropped.
#[derive(Debug)]
pub struct LogReceiver {
    lines: Lines,
    url: String,
    _server: Option<LocalServer>,
    _lease: Option<PortLease>,
}

impl LogReceiver {
    /// Receives over TCP.
    pub fn tcp() -> Result<Self> {
        let lines = Lines::default();
        let sink = lines.clone();
        let server = LocalServer::start(move |stream: &TcpStream| {
            for line in BufReader::new(stream).lines() {
                sink.add(&line?);
            }
            Ok(())
        })?;
        Ok(Self {
            lines,
            url: format!("tcp://{}", server.host_for_guest()),
            _server: Some(server),
            _lease: None,
        })
    }

    /// Accepts connections and never reads.
    pub fn that_never_reads() -> Result<Self> {
        let server = LocalServer::start(|_: &TcpStream| -> io::Result<()> {
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        })?;
        Ok(Self {
            lines: Lines::default(),
            url: format!("tcp://{}", server.host_for_guest()),
            _server: Some(server),
            _lease: None,
        })
    }

    /// Receives over UDP.
    pub fn udp() -> Result<Self> {
        let (lines, lease) = (Lines::default(), lease_port()?);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, lease.port()))?;
        let sink = lines.clone();
        // Ends with the program.
        std::thread::spawn(move || {
            let mut datagram = vec![0; 65_536];
            while let Ok(length) = socket.recv(&mut datagram) {
                sink.add(String::from_utf8_lossy(&datagram[..length]).trim_end());
            }
        });
        Ok(Self {
            lines,
            url: format!("udp://{HOST_FOR_GUEST}:{}", lease.port()),
            _server: None,
            _lease: Some(lease),
        })
    }

    /// The receiver's URL in a guest.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The lines that came so far.
    pub fn lines(&self) -> Vec<serde_json::Value> {
        self.lines.0.locked().clone()
    }
}
