//! The programs that `build/kubernetes-peers` built, and how they run on this host.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use instar_qemu::OwnedProcess;

use crate::scratch::Scratch;
use crate::workspace::target_directory;

/// The folder of all that was built for tests of Kubernetes.
pub(super) fn folder() -> PathBuf {
    target_directory().join("kubernetes")
}

/// Returns the path of a program.
pub(super) fn program(name: &str) -> Result<PathBuf> {
    let path = folder().join("bin").join(name);
    ensure!(
        path.exists(),
        "{} is not there: run `build/kubernetes-peers`",
        path.display()
    );
    Ok(path)
}

/// Starts a program that runs beside a test; its log is NAME.log in the folder.
pub(super) fn spawn(folder: &Scratch, name: &str, mut command: Command) -> Result<OwnedProcess> {
    let log = std::fs::File::create(folder.join(&format!("{name}.log")))
        .with_context(|| format!("cannot make the log of {name}"))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    OwnedProcess::start(command, None).with_context(|| format!("cannot run {name}"))
}
