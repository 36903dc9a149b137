//! A container that writes numbered lines: its log has each of them once, whatever else happens.

use anyhow::{Context as _, bail, ensure};
use instar_tests::Node;

use super::faults::Fault;
use super::living::Living;
use super::{COUNTING, Chaos};
use crate::PATIENCE;

/// Milliseconds in which half a line is written: at any moment of a fault one is.
const HALF: u32 = 250;

/// The container's arguments.
pub(super) fn arguments() -> String {
    format!("args: [halves, \"{HALF}\"]\n")
}

/// The log's last line at one moment.
pub(super) struct Counting {
    last: u64,
}

impl Counting {
    /// Waits for a new line: the last one that is there may be of an earlier process.
    pub(super) async fn of(node: &Node) -> anyhow::Result<Self> {
        let what = "the counting container has a log";
        let before = node.wait_until(what, PATIENCE, || last_line(node)).await?;
        let look = async || {
            let last = last_line(node).await?;
            ensure!(last != before, "{last:?} is still its last line");
            number_of(&last).map(|last| Self { last })
        };
        let what = "the counting container writes a line";
        node.wait_until(what, PATIENCE, look).await
    }

    /// Checks that no line of since then is missing or there twice, if the container and the log live through the fault. Returns what
    /// was found, for the table.
    pub(super) async fn went_on(
        &self,
        chaos: &Chaos,
        living: &Living,
        fault: Fault,
    ) -> anyhow::Result<String> {
        let now = Living::of(chaos).await?;
        if !fault.keeps_logs() || !living.is_same(&now, COUNTING) {
            return Ok("lines of the log may be lost".to_owned());
        }
        let look = async || {
            let log = chaos.node.log(COUNTING).await?;
            let lines = self.lines_since(&log)?;
            ensure!(lines > 0, "it does not go on after line {}", self.last);
            Ok(lines)
        };
        let what = "the counting container's log has every line once";
        let lines = chaos.node.wait_until(what, PATIENCE, look).await?;
        Ok(format!("{lines} lines of the log, each once"))
    }

    /// Counts the lines after the last one of before; each has to follow the one before it.
    fn lines_since(&self, log: &str) -> anyhow::Result<u64> {
        let mut wanted = None;
        // From the end: an earlier process has used the same numbers.
        for (lines, line) in (0..).zip(log.lines().rev()) {
            let number = number_of(line)?;
            let expected = wanted.unwrap_or(number);
            ensure!(
                number == expected,
                "line {number} where {expected} was to come"
            );
            if number == self.last {
                return Ok(lines);
            }
            wanted = Some(number.checked_sub(1).context("it began again")?);
        }
        bail!("line {} is not there any more", self.last)
    }
}

async fn last_line(node: &Node) -> anyhow::Result<String> {
    let log = node.log(COUNTING).await?;
    let last = log.lines().next_back();
    Ok(last.context("it has no line")?.to_owned())
}

fn number_of(line: &str) -> anyhow::Result<u64> {
    let rest = line.strip_prefix("line ");
    let number = rest.and_then(|rest| rest.strip_suffix(" is whole")?.parse().ok());
    number.with_context(|| format!("{line:?} is not what was written"))
}
