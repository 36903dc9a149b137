//! The version of a release.

use std::fmt;
use std::str::FromStr;

/// Limit on the length, from tags of OCI registries.
const LONGEST: usize = 128;

/// A version, for example `v0.2.0` or `v1.0.0-rc.1`, in the order of semantic versioning: `v1.0.0-rc.1` comes before `v1.0.0`. It is part of
/// file names, labels and tags, so it has no build metadata: `+` is not allowed there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(semver::Version);

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
        !self.0.pre.is_empty()
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

    #[test]
    fn versions_are_in_the_order_of_semantic_versioning() {
        let in_order = [
            "v0.1.0-alpha",
            "v0.1.0-rc.2",
            "v0.1.0-rc.10",
            "v0.1.0",
            "v0.1.1",
            "v0.2.0",
            "v0.10.0",
            "v1.0.0-0",
            "v1.0.0",
        ];
        let versions = in_order.map(|text| text.parse::<Version>().unwrap());
        assert!(versions.is_sorted_by(|one, other| one < other));
    }
}
