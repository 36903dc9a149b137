//! The time for which a cluster does not call its node ready, by the cluster's own record: when the node's condition `Ready` has changed.

use std::time::Duration;

use anyhow::Context as _;
use instar_tests::FollowedProgram;

use crate::PATIENCE;
use crate::cluster::{Cluster, NAME};

/// A watch of the condition.
pub(crate) struct TimesOfReady<'a> {
    cluster: &'a Cluster,
    states: FollowedProgram,
}

/// A label that ends the watch, and is taken away again.
const MARK: &str = "example.org/timed";
/// Whether the node is ready, since when, and the label.
const STATE: &str = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].lastTransitionTime} {.metadata.labels.example\.org/timed}{"\n"}"#;

impl<'a> TimesOfReady<'a> {
    /// Starts to watch; the state of now is the first one.
    pub(crate) fn start(cluster: &'a Cluster) -> anyhow::Result<Self> {
        let kubectl = cluster.plane.kubectl();
        let mut states = kubectl.follow(&["get", "node", NAME, "--watch", "-o", STATE])?;
        states.wait_for("the node's state", PATIENCE, |_| true)?;
        Ok(Self { cluster, states })
    }

    /// The time from the first change to another state than `True` to the last change back; zero if there was none.
    pub(crate) fn away(mut self) -> anyhow::Result<Duration> {
        let kubectl = self.cluster.plane.kubectl();
        kubectl.run(&["label", "node", NAME, &format!("{MARK}=end")])?;
        let at_the_end = |line: &str| line.ends_with(" end");
        self.states
            .wait_for("the end of the watch", PATIENCE, at_the_end)?;
        kubectl.run(&["label", "node", NAME, &format!("{MARK}-")])?;
        away(self.states.heard())
    }
}

fn away(states: &[String]) -> anyhow::Result<Duration> {
    let mut left = states.iter().filter(|state| !state.starts_with("True "));
    let Some(left) = left.next() else {
        return Ok(Duration::ZERO);
    };
    let back = states.last().context("no state")?;
    let (left, back) = (second_of_day(left)?, second_of_day(back)?);
    let day = 24 * 3600;
    Ok(Duration::from_secs((back + day - left) % day))
}

/// Reads the time in a state, such as `True 2026-11-28T21:52:20Z`.
fn second_of_day(state: &str) -> anyhow::Result<u64> {
    let (_, time) = state.rsplit_once('T').context("no time")?;
    let time = time.split(['Z', '.']).next().unwrap_or_default();
    time.split(':').try_fold(0, |sum, part| {
        let part: u64 = part.parse().with_context(|| format!("no time: {state}"))?;
        Ok(sum * 60 + part)
    })
}
