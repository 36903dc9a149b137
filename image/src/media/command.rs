//! Programs of the build machine.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// 1980-01-01, the first day that FAT knows: tools that write times write this one.
const EPOCH: &str = "315532800";

/// Returns the command of a program that writes no time of this machine.
pub(super) fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null());
    command
}

/// Runs a command. `package` is its package in Debian.
pub(super) fn run(command: &mut Command, package: &str) -> Result<()> {
    run_with_input(command, package, &[])
}

/// Runs a command with these bytes as its standard input.
pub(super) fn run_with_input(command: &mut Command, package: &str, input: &[u8]) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name} (Debian: {package})"))?;
    let written = match child.stdin.take() {
        Some(mut pipe) => pipe.write_all(input),
        None => Ok(()),
    };
    let output = child
        .wait_with_output()
        .with_context(|| format!("cannot wait for {name}"))?;
    ensure!(
        output.status.success(),
        "{name} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    written.with_context(|| format!("{name} did not read its input to the end"))
}
