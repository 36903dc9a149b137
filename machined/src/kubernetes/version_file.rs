//! The version of Kubernetes that the control plane's files were written for last.

use std::path::PathBuf;

use anyhow::Context as _;

use super::control;
use crate::base::{blocking_io, whole_file};

/// The file with the version.
#[derive(Debug, Clone, Copy)]
pub struct VersionFile;

impl VersionFile {
    fn path() -> PathBuf {
        control().join("control-plane-version")
    }

    /// Reads the version; `None` if there is none yet.
    pub async fn read() -> Option<String> {
        let read = || std::fs::read_to_string(Self::path()).ok();
        blocking_io::within(blocking_io::ANSWER, read).await.ok()?
    }

    /// Writes the version.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn write(version: &str) -> anyhow::Result<()> {
        let version = version.to_owned();
        let write = move || whole_file::replace(&Self::path(), 0o600, version.as_bytes());
        let written = blocking_io::within(blocking_io::ANSWER, write).await?;
        written.context("note the version of the control plane")
    }
}
