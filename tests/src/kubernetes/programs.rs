//! The programs that `build/kubernetes-peers` built.

use std::path::PathBuf;

use anyhow::{Result, ensure};

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
