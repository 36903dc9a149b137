//! chronyd as a time server of the test's own on 127.0.0.1: it serves the host's time and sets no clock.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use crate::HOST_FOR_GUEST;
use crate::scratch::Scratch;
use crate::workspace::target_directory;

/// A running time server.
#[derive(Debug)]
pub struct TimeServer {
    _process: OwnedProcess,
    lease: PortLease,
}

impl TimeServer {
    /// Starts a server.
    pub fn start(scratch: &Scratch) -> Result<Self> {
        // The lease of the TCP port keeps the UDP port free as well: no other process gets the same number.
        let lease = lease_port()?;
        let config = format!(
            "port {}\nbindaddress 127.0.0.1\nallow 127.0.0.0/8\ncmdport 0\nbindcmdaddress /\nlocal stratum 3\npidfile {}\n",
            lease.port(),
            scratch.join("chronyd.pid").display()
        );
        let config = scratch.write("chronyd.conf", config)?;
        let log = File::create(scratch.join("chronyd.log")).context("cannot make chronyd's log")?;
        let mut command = Command::new(program());
        command
            // In the foreground, without setting the clock, as the test's own user.
            .args(["-d", "-x", "-U", "-u", &user()?, "-f"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = OwnedProcess::start(command, None)
            .context("cannot run chronyd: build/fetch-chronyd fetches it")?;
        Ok(Self {
            _process: process,
            lease,
        })
    }

    /// The server's address in a guest.
    pub fn address_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.lease.port())
    }
}

fn program() -> PathBuf {
    let fetched = target_directory().join("chrony/usr/sbin/chronyd");
    if fetched.exists() {
        fetched
    } else {
        "/usr/sbin/chronyd".into()
    }
}

fn user() -> Result<String> {
    let said = Command::new("id")
        .arg("-un")
        .output()
        .context("cannot run id")?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}
