//! tinyproxy, an HTTP proxy by another project, on 127.0.0.1; it needs a password.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use crate::HOST_FOR_GUEST;
use crate::scratch::Scratch;

const USER: &str = "node";
const PASSWORD: &str = "s3cret";

/// A running proxy.
#[derive(Debug)]
pub struct HttpProxy {
    _process: OwnedProcess,
    lease: PortLease,
    log: PathBuf,
}

impl HttpProxy {
    /// Starts a proxy.
    pub fn start(scratch: &Scratch) -> Result<Self> {
        let lease = lease_port()?;
        let log = scratch.join("tinyproxy.log");
        let config = format!(
            "Port {}\nListen 127.0.0.1\nMaxClients 20\nLogLevel Connect\nLogFile \"{}\"\nBasicAuth {USER} {PASSWORD}\n",
            lease.port(),
            log.display()
        );
        let config = scratch.write("tinyproxy.conf", config)?;
        let mut command = Command::new("tinyproxy");
        // In the foreground, as the test's own user.
        command.arg("-d").arg("-c").arg(config).stdin(Stdio::null());
        let process = OwnedProcess::start(command, None)
            .context("cannot run tinyproxy: make deps installs it")?;
        Ok(Self {
            _process: process,
            lease,
            log,
        })
    }

    /// The proxy's URL in a guest, with its password.
    pub fn url(&self) -> String {
        format!("http://{USER}:{PASSWORD}@{}", self.host_for_guest())
    }

    /// The proxy's URL without the password.
    pub fn url_without_password(&self) -> String {
        format!("http://{}", self.host_for_guest())
    }

    /// The proxy's host and port in a guest.
    pub fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.lease.port())
    }

    /// The proxy's log: a line for each request.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).context("tinyproxy has written no log")
    }
}
