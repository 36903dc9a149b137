//! Parts of the measurement as processes of their own.

use std::process::{Child, Command, Stdio};

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

    /// Fails if the process has ended by itself.
    pub(crate) fn still_runs(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended: {status}", self.name),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
