//! The sources of packages: the lists of exact versions in the repository, the cache of files, the archive.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::Mirror;

/// The policy for a listed version that the archive no longer has: Debian keeps only the newest of each suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Take the version that the signed index has now, and report it.
    Substitute,
    /// Fail.
    Refuse,
}

/// The sources of packages.
#[derive(Clone, Debug)]
pub struct Source {
    /// The folder of lists: for each request a file with exact versions and digests, kept in the repository.
    pub lists: PathBuf,
    /// The folder in which files are kept between builds.
    pub cache: PathBuf,
    /// The archive, else the one that this machine's apt uses.
    pub mirror: Option<Mirror>,
    /// The policy for versions that are gone from the archive.
    pub missing: Missing,
}

impl Source {
    /// Returns the archive.
    ///
    /// # Errors
    /// This machine's apt names none.
    pub fn mirror(&self) -> Result<Mirror> {
        Mirror::chosen(self.mirror.as_ref())
    }

    /// Returns the archive for new lists: it must come with the archive of security updates, or lists would name
    /// versions with known defects.
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
