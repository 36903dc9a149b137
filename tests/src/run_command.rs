//! One command of the host, from its start to its end.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs a command to its end and returns its standard output; an error has its standard error.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?} failed ({}):\n{}",
        output.status,
        complaint.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
