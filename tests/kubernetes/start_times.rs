//! The start of a node that has joined before, in guest time from the kernel's start: when the machine's API answers, when kubelet starts, and
//! when the cluster calls the node ready.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use instar_qemu::ConsoleMark;
use instar_tests::{FollowedProgram, Node};

use crate::PATIENCE;
use crate::cluster::{Cluster, NAME};

/// The boot that the node is in, and whether it is ready.
const STATE: &str =
    r#"jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type=="Ready")].status}{"\n"}"#;
/// machined's line at the API's first answer.
const API: &str = "the API answers on port";
/// Ticks of a second in /proc/PID/stat, the same on all machines.
const TICKS: f64 = 100.0;

/// A start that is to come.
pub(crate) struct NextStart {
    states: FollowedProgram,
    /// The boot before it.
    boot: String,
    mark: ConsoleMark,
}

/// The times of a start.
#[derive(Debug)]
pub(crate) struct StartTimes {
    api: Duration,
    kubelet: Duration,
    ready: Duration,
}

impl NextStart {
    /// Begins to watch, before the machine is reset.
    pub(crate) fn watch(node: &Node, cluster: &Cluster) -> anyhow::Result<Self> {
        let kubectl = cluster.plane.kubectl();
        let mut states = kubectl.follow(&["get", "node", NAME, "--watch", "-o", STATE])?;
        let state = states.wait_for("the node's boot", PATIENCE, |_| true)?;
        let (boot, _) = state.split_once(' ').context("no boot")?;
        Ok(Self {
            states,
            boot: boot.to_owned(),
            mark: node.vm().console_mark()?,
        })
    }

    /// Waits until the node is ready in another boot.
    pub(crate) async fn times(mut self, node: &Node) -> anyhow::Result<StartTimes> {
        let answers = node.vm().wait_for_line_after(self.mark, API, PATIENCE)?;
        let api = answers.kernel_time().context("a line without a time")?;
        let boot = self.boot;
        self.states.wait_for("another boot", PATIENCE, |state| {
            !state.starts_with(&boot) && state.ends_with(" True")
        })?;
        let seen = Instant::now();
        let uptime = node.uptime().await?;
        Ok(StartTimes {
            api,
            kubelet: start_of(node, "kubelet").await?,
            ready: uptime.saturating_sub(seen.elapsed()),
        })
    }
}

/// The time at which the running process of this command started.
async fn start_of(node: &Node, command: &str) -> anyhow::Result<Duration> {
    let listed = node.machine().await?.processes(()).await?.into_inner();
    let mut all = listed.messages.iter().flat_map(|of| &of.processes);
    let process = all.find(|process| process.command.starts_with(command));
    let process = process.with_context(|| format!("no {command}: {listed:?}"))?;
    let stat = node.read(&format!("/proc/{}/stat", process.pid)).await?;
    started(&stat).with_context(|| format!("no start in {stat}"))
}

/// Reads the start of a process in its `proc_pid_stat(5)`, the field 22: the name, the field 2, may have blanks.
fn started(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks: f64 = after_name.split_whitespace().nth(19)?.parse().ok()?;
    Some(Duration::from_secs_f64(ticks / TICKS))
}

impl fmt::Display for StartTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            api,
            kubelet,
            ready,
        } = self;
        let own = ready.saturating_sub(*kubelet);
        let ratio = ready.as_secs_f64() / (*api + own).as_secs_f64();
        write!(
            f,
            "the API answers {api:.1?} after the kernel's start, kubelet starts after {kubelet:.1?}, the node is ready after {ready:.1?}: kubelet's own \
             start takes {own:.1?}, and the node {ratio:.2} × the API's start and kubelet's own"
        )
    }
}
