//! An etcd of one member on this host, which ends with the test.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use instar_qemu::{Ended, OwnedProcess, PortLease, lease_port};

use super::programs::{program, spawn};
use crate::http_client::http;
use crate::scratch::Scratch;

/// Timeout for its first answer; on an idle host that comes within a second.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// The figure of the bytes from clients, as its page of figures names it.
const RECEIVED: &str = "etcd_network_client_grpc_received_bytes_total ";

/// An etcd, until it is dropped.
#[derive(Debug)]
pub(super) struct Etcd {
    process: OwnedProcess,
    clients: PortLease,
    _peers: PortLease,
}

impl Etcd {
    /// Starts it from nothing. Its data are in the folder.
    pub(super) fn start(folder: &Scratch) -> Result<Self> {
        let (clients, peers) = (lease_port()?, lease_port()?);
        let for_clients = url(&clients);
        let for_peers = url(&peers);
        let mut command = Command::new(program("etcd")?);
        command.arg("--data-dir").arg(folder.join("etcd"));
        command.args(["--listen-client-urls", &for_clients]);
        command.args(["--advertise-client-urls", &for_clients]);
        command.args(["--listen-peer-urls", &for_peers]);
        command.args(["--initial-advertise-peer-urls", &for_peers]);
        command.args(["--initial-cluster", &format!("default={for_peers}")]);
        // The data ends with the test.
        command.arg("--unsafe-no-fsync");
        Ok(Self {
            process: spawn(folder, "etcd", command)?,
            clients,
            _peers: peers,
        })
    }

    /// Its address for clients.
    pub(super) fn url(&self) -> String {
        url(&self.clients)
    }

    /// How it ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.process.ended()
    }

    /// Waits until it serves clients.
    pub(super) fn wait_until_ready(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while let Err(error) = self.is_healthy() {
            if let Some(ended) = self.ended() {
                bail!("etcd ended ({ended}): see etcd.log");
            }
            if Instant::now() > until {
                return Err(error.context("etcd does not become ready"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn is_healthy(&self) -> Result<()> {
        let address = format!("{}:{}", Ipv4Addr::LOCALHOST, self.clients.port());
        let answer = http(&address, "GET", "/health", &[], &[]).context("it does not answer")?;
        ensure!(answer.status == 200, "it answers {}", answer.status);
        Ok(())
    }

    /// The bytes that it has received from its clients.
    pub(super) fn received_bytes(&self) -> Result<u64> {
        let address = format!("{}:{}", Ipv4Addr::LOCALHOST, self.clients.port());
        let page = http(&address, "GET", "/metrics", &[], &[])?;
        let page = String::from_utf8(page.body)?;
        let mut lines = page.lines();
        let number = lines
            .find_map(|line| line.strip_prefix(RECEIVED))
            .context("etcd does not say it")?;
        // Large numbers have an exponent.
        let number: f64 = number.trim().parse()?;
        Ok(number as u64)
    }

    /// Ends it at once, as a power cut does.
    pub(super) fn kill(&self) {
        self.process.kill();
    }
}

fn url(port: &PortLease) -> String {
    format!("http://{}:{}", Ipv4Addr::LOCALHOST, port.port())
}
