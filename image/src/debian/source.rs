//! Where packages come from: the lists of exact versions in the repository, the cache of files, the archive.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::Mirror;

/// What to do when the archive no longer has a version that a list names: Debian keeps only the newest of each suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Take what the signed index has now, and say so.
    Substitute,
    /// Fail.
    Refuse,
}

/// Where packages come from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The folder of lists: for each request a file with exact versions and digests, kept in the repository.
    pub lists: PathBuf,
    /// Where files are kept between builds.
    pub cache: PathBuf,
    /// The archive, else the one that this machine's apt uses.
    pub mirror: Option<Mirror>,
    /// For versions that are gone from the archive.
    pub missing: Missing,
}

impl Source {
    /// The archive to ask.
    ///
    /// # Errors
    /// This machine's apt names none.
    pub fn mirror(&self) -> Result<Mirror> {
        Mirror::chosen(self.mirror.as_ref())
    }

    /// The archive to write new lists from: it must come with the archive of security updates, or lists would name versions with
    /// known defects.
    ///
    /// # Errors
    /// There is none, or it has no security updates.
    pub fn mirror_with_security(&self) -> Result<Mirror> {
        let mirror = self.mirror()?;
        ensure!(
            mirror.security.is_some(),
            "new lists need the archive of security updates too: add it to this machine's apt sources, or name it with --security-mirror"
        );
        Ok(mirror)
    }
}
