//! A revision of a version, which its owner counts up, and a build of it.

use std::fmt;

/// A revision, and perhaps a build of it. In order, a revision comes before its builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Revision {
    pub(super) number: u64,
    pub(super) build: Option<Build>,
}

/// A build's number, as the Open Build Service counts: commits of the source, then rebuilds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Build {
    pub(super) commit: u64,
    pub(super) rebuild: u64,
}

impl Revision {
    /// Reads what follows a version: `rev1` or `rev1-b5.1`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (revision, build) = match text.split_once('-') {
            None => (text, None),
            Some((revision, build)) => (revision, Some(Build::parse(build)?)),
        };
        let number = number(revision.strip_prefix("rev")?)?;
        Some(Revision { number, build })
    }
}

impl Build {
    fn parse(text: &str) -> Option<Self> {
        let (commit, rebuild) = text.strip_prefix('b')?.split_once('.')?;
        Some(Build {
            commit: number(commit)?,
            rebuild: number(rebuild)?,
        })
    }
}

/// Parses a number in its one form: no sign, no zero in front.
pub(super) fn number(digits: &str) -> Option<u64> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| is_plain)
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rev{}", self.number)?;
        match self.build {
            Some(Build { commit, rebuild }) => write!(f, "-b{commit}.{rebuild}"),
            None => Ok(()),
        }
    }
}
