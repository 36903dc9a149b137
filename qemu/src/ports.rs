//! Free TCP ports of 127.0.0.1, leased so that machines that start at the same time don't pick the same.
//!
//! All lie below Linux's ephemeral range (32768 and on). Inside it a client that redials a server which is down sooner
//! or later connects to itself, and the server cannot bind its port.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use crate::error::{Error, Result};

const FIRST: u16 = 20_000;
const LAST: u16 = 29_999;

/// A lease of a port: no other caller of [`lease_port`] gets it while this value lives.
#[derive(Debug)]
pub struct PortLease {
    port: u16,
    /// The locked file; the kernel unlocks it however this process ends.
    _lock: File,
}

impl PortLease {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Leases a free port. A program without a lease can still take it before it is used: then lease the next.
pub fn lease_port() -> Result<PortLease> {
    let directory = lock_directory();
    std::fs::create_dir_all(&directory).map_err(Error::directory("make", &directory))?;
    // Different processes start at different places, so that they seldom meet.
    let count = LAST - FIRST + 1;
    let start = u16::try_from(std::process::id() % u32::from(count)).unwrap_or(0);
    for step in 0..count {
        let port = FIRST + (start + step) % count;
        let path = directory.join(port.to_string());
        let lock = File::create(&path).map_err(Error::directory("make", &path))?;
        if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(PortLease { port, _lock: lock });
        }
    }
    Err(Error::NoPort {
        first: FIRST,
        last: LAST,
    })
}

/// Returns the directory of the locks, one per user: another user's lock files cannot be opened.
fn lock_directory() -> PathBuf {
    std::env::temp_dir().join(format!(
        "instar-ports-{}",
        rustix::process::getuid().as_raw()
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn leases_differ_and_lie_below_the_ephemeral_range() {
        let leases: Vec<_> = (0..20).map(|_| lease_port().unwrap()).collect();
        let mut ports: Vec<_> = leases.iter().map(PortLease::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
        assert!(ports.iter().all(|port| (20_000..32_768).contains(port)));
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let first = lease_port().unwrap();
        let port = first.port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        drop(first);
        assert_ne!(lease_port().unwrap().port(), port);
        drop(listener);
    }
}
