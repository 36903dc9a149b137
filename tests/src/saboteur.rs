//! Gives orders to the saboteur in a node (`tests/double/src/saboteur.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::node::Node;

/// Timeout for an answer, beyond the time that the order itself takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of a node's saboteur, whose port has to be forwarded.
#[derive(Debug, Clone)]
pub struct Saboteur {
    address: String,
}

impl Saboteur {
    /// The saboteur's port in the guest.
    pub const PORT: u16 = 9099;

    /// Returns the client of a node's saboteur.
    pub fn of(node: &Node) -> Result<Self> {
        Ok(Self {
            address: node.guest_port(Self::PORT)?,
        })
    }

    /// Sends a signal to each process of a program, once there is one. Returns their number.
    pub fn signal(&self, program: &str, signal: Signal, within: Duration) -> Result<usize> {
        let order = format!(
            "signal {program} {} {}",
            signal.as_raw(),
            within.as_millis()
        );
        Ok(self.order(&order, within)?.lines().count())
    }

    /// Returns each directory that an overlay writes to, with those overlays' devices: two devices would be two
    /// filesystems.
    pub fn layers(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for line in self.order("layers", Duration::ZERO)?.lines() {
            let (device, upper) = line.split_once(' ').context("no directory")?;
            found
                .entry(upper.to_owned())
                .or_default()
                .insert(device.to_owned());
        }
        Ok(found)
    }

    /// Returns the first process of each container that may outlive its generation, as its number and its start.
    pub fn workloads(&self) -> Result<BTreeMap<String, (u32, u64)>> {
        let mut found = BTreeMap::new();
        for line in self.order("workloads", Duration::ZERO)?.lines() {
            let [name, pid, started] = line.split(' ').collect::<Vec<_>>()[..] else {
                bail!("a process of a container: {line:?}");
            };
            let process: (u32, u64) = (pid.parse()?, started.parse()?);
            let first = found.entry(name.to_owned()).or_insert(process);
            if process.1 < first.1 {
                *first = process;
            }
        }
        Ok(found)
    }

    /// Sets the clock this many seconds before or after the host's, whatever it is by now: a generation that has begun since may have
    /// raised it.
    pub fn set_clock_off(&self, seconds: i64) -> Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let seconds = i64::try_from(now.as_secs())? + seconds;
        self.order(&format!("clock {seconds}"), Duration::ZERO)
            .map(drop)
    }

    fn order(&self, order: &str, takes: Duration) -> Result<String> {
        let what = || format!("the saboteur, asked for {order:?}");
        let mut stream = TcpStream::connect(&self.address).with_context(what)?;
        stream.set_read_timeout(Some(takes + PATIENCE))?;
        writeln!(stream, "{order}").with_context(what)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(what)?;
        match answer.split_once('\n') {
            Some(("ok", rest)) => Ok(rest.to_owned()),
            _ => bail!("{}: {answer:?}", what()),
        }
    }
}
