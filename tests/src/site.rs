//! A site: machines with disks that run the greeter of one registry, and that lose their power together.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use crate::{GREETER, Greeter, Node, Registry, Scratch, plan_with_greeter};

/// The machines of a site.
pub struct Site {
    nodes: Vec<Node>,
}

impl Site {
    /// Installs so many machines; returns once their containers answer.
    pub async fn boot(
        scratch: &Scratch,
        registry: &Registry,
        machines: usize,
        within: Duration,
    ) -> Result<Self> {
        let mut nodes = Vec::new();
        for number in 1..=machines {
            let plan = plan_with_greeter(scratch, registry, |config| config)?
                .name(&format!("machine-{number}"))
                .blank_disk()?;
            nodes.push(plan.start()?);
        }
        let site = Self { nodes };
        site.all_greet(within).await?;
        Ok(site)
    }

    /// Cuts the power of all machines, turns it on again, and returns once their containers answer.
    pub async fn power_cycle(self, within: Duration) -> Result<Self> {
        let mut cycles = JoinSet::new();
        for node in self.nodes {
            cycles.spawn(node.power_cycle());
        }
        let mut nodes = Vec::new();
        for node in cycles.join_all().await {
            nodes.push(node?);
        }
        let site = Self { nodes };
        site.all_greet(within).await?;
        Ok(site)
    }

    async fn all_greet(&self, within: Duration) -> Result<()> {
        for node in &self.nodes {
            node.wait_until_ready(within).await?;
            let greets = async || Greeter::of(node)?.greets();
            node.wait_until("the container answers", within, greets)
                .await?;
        }
        Ok(())
    }

    /// Returns the time from the start of the kernel to the start of the container, of the machine that took longest, by the machine's own
    /// clock.
    pub async fn slowest_start(&self) -> Result<Duration> {
        let mut slowest = Duration::ZERO;
        for node in &self.nodes {
            slowest = slowest.max(start_of_greeter(node).await?);
        }
        Ok(slowest)
    }

    /// The machines.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

/// The time of the container's start: field 22 of /proc/PID/stat, in hundredths of a second since the boot (proc_pid_stat(5)).
async fn start_of_greeter(node: &Node) -> Result<Duration> {
    let pid = node.service_pid(GREETER).await?;
    let stat = node.read(&format!("/proc/{pid}/stat")).await?;
    let after_name = stat.rsplit_once(')').context("no name in stat")?.1;
    let start = after_name.split_whitespace().nth(19);
    let ticks: u64 = start.context("no start time in stat")?.parse()?;
    Ok(Duration::from_millis(ticks * 10))
}
