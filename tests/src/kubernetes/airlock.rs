//! The real airlock, the FleetLock server of Fedora CoreOS, on an etcd of its own, as processes of this host.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use super::etcd::Etcd;
use super::peers::AIRLOCK;
use super::programs::spawn;
use crate::scratch::Scratch;

/// Timeout for the server to listen.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// The server and its etcd, until this value is dropped.
#[derive(Debug)]
pub struct Airlock {
    server: OwnedProcess,
    port: PortLease,
    etcd: Etcd,
    config: PathBuf,
    folder: Scratch,
}

impl Airlock {
    /// Starts a server with these groups, each with the number of its slots.
    pub fn start(scratch: &Scratch, groups: &[(&str, u32)]) -> Result<Self> {
        let folder = scratch.below("airlock")?;
        let etcd = Etcd::start(&folder)?;
        etcd.wait_until_ready()?;
        let port = lease_port()?;
        let config = folder.write("airlock.toml", config(&port, &etcd, groups))?;
        let server = serve(&folder, &config)?;
        let airlock = Self {
            server,
            port,
            etcd,
            config,
            folder,
        };
        airlock.wait_until_it_listens()?;
        Ok(airlock)
    }

    /// Its address on this host.
    pub fn url(&self) -> String {
        format!("http://{}:{}", Ipv4Addr::LOCALHOST, self.port.port())
    }

    /// Halts the server: clients can still connect, and get no byte.
    pub fn halt(&self) -> Result<()> {
        Ok(self.server.halt()?)
    }

    /// Ends the server. Its locks stay in its etcd.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Starts the server again after its end.
    pub fn start_again(&mut self) -> Result<()> {
        self.server = serve(&self.folder, &self.config)?;
        self.wait_until_it_listens()
    }

    /// Ends the server's etcd.
    pub fn end_its_etcd(&self) {
        self.etcd.kill();
    }

    fn wait_until_it_listens(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.port())).is_err() {
            if let Some(ended) = self.server.ended() {
                bail!("airlock ended ({ended}): see airlock.log");
            }
            if Instant::now() > until {
                bail!("airlock does not listen within {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

fn serve(folder: &Scratch, config: &PathBuf) -> Result<OwnedProcess> {
    let mut command = Command::new(AIRLOCK.program()?);
    command.args(["serve", "-vv", "--config"]).arg(config);
    spawn(folder, "airlock", command)
}

fn config(port: &PortLease, etcd: &Etcd, groups: &[(&str, u32)]) -> String {
    let groups = groups
        .iter()
        .map(|(name, slots)| format!("[[lock.groups]]\nname = \"{name}\"\nslots = {slots}\n"));
    format!(
        "[service]\naddress = \"127.0.0.1\"\nport = {}\ntls = false\n[status]\nenabled = false\n[etcd3]\nendpoints = [\"{}\"]\n\
         [lock]\ndefault_group_name = \"default\"\ndefault_slots = 1\n{}",
        port.port(),
        etcd.url(),
        groups.collect::<String>()
    )
}
