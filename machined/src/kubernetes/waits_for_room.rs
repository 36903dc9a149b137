//! The note of a change of the control plane that waits for room for its snapshot. It outlasts a reboot, after which etcd is silent for a while
//! and cannot say that it has data.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context as _;

use super::home;
use crate::base::{blocking_io, removal, whole_file};

/// The file with the name of the snapshot that the change waits for.
#[derive(Debug, Clone, Copy)]
pub struct WaitsForRoom;

impl WaitsForRoom {
    fn path() -> PathBuf {
        home().join("change-waits-for-room")
    }

    /// Whether the change with this snapshot has waited for room.
    pub async fn has(snapshot: &str) -> bool {
        let snapshot = snapshot.to_owned();
        let read = move || is_of(&Self::path(), &snapshot);
        let read = blocking_io::within(blocking_io::ANSWER, read).await;
        read.unwrap_or(false)
    }

    /// Notes that the change with this snapshot waits for room.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn note(snapshot: &str) -> anyhow::Result<()> {
        let snapshot = snapshot.to_owned();
        let write = move || whole_file::replace(&Self::path(), 0o600, snapshot.as_bytes());
        let written = blocking_io::within(blocking_io::ANSWER, write).await?;
        written.context("note the change that waits for room")
    }

    /// Forgets the change, as it has come to its end.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub async fn forget() -> anyhow::Result<()> {
        let remove = || -> io::Result<()> { removal::file(&Self::path()) };
        let removed = blocking_io::within(blocking_io::ANSWER, remove).await?;
        removed.context("forget the change that has waited for room")
    }
}

fn is_of(path: &Path, snapshot: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|noted| noted == snapshot)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_note_is_of_one_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("note");
        assert!(!is_of(&path, "etcd-1-before-etcd-2"));
        whole_file::replace(&path, 0o600, b"etcd-1-before-etcd-2").unwrap();
        assert!(is_of(&path, "etcd-1-before-etcd-2"));
        assert!(!is_of(&path, "etcd-1-before-etcd-3"));
        removal::file(&path).unwrap();
        assert!(!is_of(&path, "etcd-1-before-etcd-2"));
    }
}
