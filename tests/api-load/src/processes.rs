//! Parts of the measurement as processes of their own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

/// A process of this program in another role; it is killed when this value is dropped.
pub(crate) struct Part {
    name: &'static str,
    child: Child,
}

impl Part {
    /// Starts the process with this standard input and output.
    pub(crate) fn start(
        name: &'static str,
        input: impl Into<Stdio>,
        output: impl Into<Stdio>,
        edit: impl FnOnce(&mut Command) -> &mut Command,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(program);
        command.arg(name).stdin(input).stdout(output);
        let child = edit(&mut command)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Part { name, child })
    }

    /// The process's memory, in KiB.
    pub(crate) fn resident_kib(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let anonymous = text
            .lines()
            .find_map(|line| line.strip_prefix("Anonymous:"))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse().ok());
        anonymous.with_context(|| format!("no Anonymous in {path}"))
    }

    /// The processor time that the process has used.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        processor_time_of(&self.child.id().to_string())
    }

    /// Fails if the process has ended by itself.
    pub(crate) fn still_runs(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended: {status}", self.name),
        }
    }
}

/// The processor time that this process has used.
pub(crate) fn own_processor_time() -> anyhow::Result<Duration> {
    processor_time_of("self")
}

fn processor_time_of(process: &str) -> anyhow::Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The program's name is the second field, and may have spaces: utime and stime are the fields 14 and 15 (proc_pid_stat(5)).
    let (_, fields) = text
        .rsplit_once(") ")
        .with_context(|| format!("no name in {path}"))?;
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: Result<Vec<u64>, _> = ticks.map(str::parse).collect();
    let ticks: u64 = ticks
        .with_context(|| format!("no times in {path}"))?
        .iter()
        .sum();
    // The kernel shows 100 ticks per second on every machine that this runs on.
    Ok(Duration::from_millis(ticks * 10))
}

impl Drop for Part {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
