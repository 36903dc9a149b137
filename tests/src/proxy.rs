//! tinyproxy, an HTTP proxy that is not ours, on 127.0.0.1: for whoever knows its password.

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
    /// Starts one.
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
        // In the foreground, as whoever runs the test.
        command.arg("-d").arg("-c").arg(config).stdin(Stdio::null());
        let process = OwnedProcess::start(command, None)
            .context("cannot run tinyproxy: make deps installs it")?;
        Ok(Self {
            _process: process,
            lease,
            log,
        })
    }

    /// How a guest names it, with its password.
    pub fn url(&self) -> String {
        format!("http://{USER}:{PASSWORD}@{}", self.host_for_guest())
    }

    /// The same, by somebody who does not know the password.
    pub fn url_without_password(&self) -> String {
        format!("http://{}", self.host_for_guest())
    }

    /// Host and port as a guest knows them.
    pub fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.lease.port())
    }

    /// Its log: a line for each request.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).context("tinyproxy has written no log")
    }
}
