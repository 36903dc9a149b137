//! The version of a release.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use super::revision::Revision;

/// Limit on the length, from tags of OCI registries.
const LONGEST: usize = 128;

/// A version, for example `v0.2.0` or `v1.0.0-rc.1`, in the order of semantic versioning: `v1.0.0-rc.1` comes before `v1.0.0`. A revision,
/// which that order takes for a pre-release, comes after its version, by number: `v1.0.0`, `v1.0.0-rev9`, `v1.0.0-rev9-b5.1`,
/// `v1.0.0-rev10`. It is part of file names, labels and tags, so it has no build metadata: `+` is not allowed there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(semver::Version);

/// The kinds of text that may follow the numbers of a version, in order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rest<'a> {
    PreRelease(&'a semver::Prerelease),
    Nothing,
    Revision(Revision),
}

/// The text is not a version.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a version: expected something like v0.2.0 or v1.0.0-rc.1")]
pub struct NotAVersion(String);

impl Version {
    /// Returns the three numbers.
    pub fn numbers(&self) -> [u64; 3] {
        [self.0.major, self.0.minor, self.0.patch]
    }

    /// Whether it comes before the release of its numbers, as `v1.0.0-rc.1` does.
    pub fn is_pre_release(&self) -> bool {
        matches!(self.rest(), Rest::PreRelease(_))
    }

    fn rest(&self) -> Rest<'_> {
        let pre_release = &self.0.pre;
        match Revision::parse(pre_release) {
            _ if pre_release.is_empty() => Rest::Nothing,
            Some(revision) => Rest::Revision(revision),
            None => Rest::PreRelease(pre_release),
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = self.numbers().cmp(&other.numbers());
        numbers.then_with(|| self.rest().cmp(&other.rest()))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let parsed = text
            .strip_prefix('v')
            .filter(|_| text.len() <= LONGEST)
            .and_then(|numbers| semver::Version::parse(numbers).ok())
            .filter(|version| version.build.is_empty());
        // The text may be hostile.
        parsed
            .map(Self)
            .ok_or_else(|| NotAVersion(text.chars().take(LONGEST).collect()))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As one text, so that it can be padded.
        f.pad(&format!("v{}", self.0))
    }
}

crate::text_form::serde_by_text!(Version);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_versions_are_versions() {
        for good in [
            "v0.1.0",
            "v10.20.30",
            "v1.0.0-rc.1",
            "v2.6.2-rev1-b5.1",
            &format!("v1.0.0-{}", "x".repeat(LONGEST - 7)),
        ] {
            let version: Version = good.parse().unwrap();
            assert_eq!(version.to_string(), good);
            let json = serde_json::to_string(&version).unwrap();
            assert_eq!(serde_json::from_str::<Version>(&json).unwrap(), version);
        }
        for bad in [
            "",
            "0.1.0",
            "v1.2",
            "v1.2.3.4",
            "v1..2",
            "v1.2.x",
            "v1.2.3-",
            "v1.2.3\n",
            "v1.2.3 ",
            // No two texts are one version.
            "v01.2.3",
            "v1.2.3-rc.01",
            // In an entry's file name the number of tries left follows the version.
            "v1.2.3+x5",
            "v1.2.3-a/b",
            "v1.2.3-a..b",
            "v1.2.3-é",
            "v1.2.99999999999999999999",
            &format!("v1.0.0-{}", "x".repeat(LONGEST - 6)),
        ] {
            bad.parse::<Version>().unwrap_err();
            let json = serde_json::to_string(bad).unwrap();
            serde_json::from_str::<Version>(&json).unwrap_err();
        }
    }

    const IN_ORDER: [&str; 19] = [
        "v0.1.0-alpha",
        "v0.1.0-rc.2",
        "v0.1.0-rc.10",
        // No revisions: semantic versioning orders them, as texts.
        "v0.1.0-rev01",
        "v0.1.0-rev1-5",
        "v0.1.0-revx",
        "v0.1.0",
        "v0.1.0-rev1",
        "v0.1.0-rev1-b5.9",
        "v0.1.0-rev1-b5.10",
        "v0.1.0-rev1-b10.0",
        "v0.1.0-rev9",
        "v0.1.0-rev9-b1.1",
        "v0.1.0-rev10",
        "v0.1.1",
        "v0.2.0",
        "v0.10.0",
        "v1.0.0-0",
        "v1.0.0",
    ];

    #[test]
    fn versions_are_in_the_order_of_semantic_versioning_and_revisions_come_after() {
        let versions = IN_ORDER.map(|text| text.parse::<Version>().unwrap());
        for (at, one) in versions.iter().enumerate() {
            for (other_at, other) in versions.iter().enumerate() {
                assert_eq!(one.cmp(other), at.cmp(&other_at), "{one} and {other}");
                assert_eq!(one == other, at == other_at);
            }
        }
    }

    #[test]
    fn a_revision_is_no_pre_release() {
        for (text, expected) in [
            ("v0.2.0", false),
            ("v0.2.0-rev1", false),
            ("v0.2.0-rev1-b5.1", false),
            ("v0.2.0-rc.1", true),
            ("v0.2.0-rev", true),
        ] {
            let version: Version = text.parse().unwrap();
            assert_eq!(version.is_pre_release(), expected, "{text}");
        }
    }
}
