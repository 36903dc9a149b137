//! Ranges of versions, for example `>=v0.1.0 <v0.3.0 || v0.5.1`.
//!
//! ```text
//! ranges = range { "||" range }          a version is in one of them
//! range  = bound { " " bound }           a version meets all of them
//! bound  = [ ">=" | ">" | "<=" | "<" | "=" ] version
//! ```
//!
//! Versions are compared by semantic versioning, pre-releases too: `<v0.3.0` includes `v0.3.0-rc.1`, and `<v0.3.0-0` does not. Revisions
//! come after their version ([`Version`]): `>=v0.3.0` includes `v0.3.0-rev1`, and `<v0.3.0` and `<=v0.3.0` do not.
//!
//! The decision: `semver` compares versions, and the ranges are a type of our own. `semver::VersionReq` was the other choice; it has no
//! alternatives, and it leaves out each pre-release whose numbers no bound names, so that a machine on `v0.2.0-rc.1` would not be in
//! `>=v0.1.0 <v0.3.0`, and could not be upgraded.

use std::fmt;
use std::str::FromStr;

use super::version::{NotAVersion, Version};

/// Ranges of versions; there is at least one range, and each has at least one bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRanges(Vec<Vec<Bound>>);

/// A bound that a version meets or not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    relation: Relation,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    AtLeast,
    Above,
    AtMost,
    Below,
    Exactly,
}

/// All relations as they are written. A text that begins with another one of them comes first.
const RELATIONS: [(&str, Relation); 5] = [
    (">=", Relation::AtLeast),
    ("<=", Relation::AtMost),
    (">", Relation::Above),
    ("<", Relation::Below),
    ("=", Relation::Exactly),
];

/// Why a text is no ranges.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotRanges {
    /// There is no bound at the beginning, at the end, or between two `||`.
    #[error(
        "a range is empty: expected ranges such as \">=v0.1.0 <v0.3.0 || v0.5.1\", with a version on each side of ||"
    )]
    Empty,
    /// A bound is not one.
    #[error(
        "{bound:?} is not a bound: expected one of >= > <= < = with a version directly after it, or a version alone"
    )]
    Bound {
        /// The bound.
        bound: String,
        /// Why its version is not one.
        source: NotAVersion,
    },
}

impl VersionRanges {
    /// Whether the version is in one of the ranges.
    pub fn contains(&self, version: &Version) -> bool {
        let meets_all = |range: &Vec<Bound>| range.iter().all(|bound| bound.is_met_by(version));
        self.0.iter().any(meets_all)
    }
}

impl Bound {
    fn is_met_by(&self, version: &Version) -> bool {
        match self.relation {
            Relation::AtLeast => *version >= self.version,
            Relation::Above => *version > self.version,
            Relation::AtMost => *version <= self.version,
            Relation::Below => *version < self.version,
            Relation::Exactly => *version == self.version,
        }
    }
}

impl FromStr for VersionRanges {
    type Err = NotRanges;

    fn from_str(text: &str) -> Result<Self, NotRanges> {
        let range = |text: &str| {
            let bounds = text.split_whitespace().map(str::parse);
            let bounds: Vec<Bound> = bounds.collect::<Result<_, _>>()?;
            match bounds.is_empty() {
                true => Err(NotRanges::Empty),
                false => Ok(bounds),
            }
        };
        text.split("||")
            .map(range)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl FromStr for Bound {
    type Err = NotRanges;

    fn from_str(text: &str) -> Result<Self, NotRanges> {
        let (relation, version) = RELATIONS
            .into_iter()
            .find_map(|(written, relation)| Some((relation, text.strip_prefix(written)?)))
            .unwrap_or((Relation::Exactly, text));
        let version = version.parse().map_err(|source| NotRanges::Bound {
            // The text may be hostile.
            bound: text.chars().take(80).collect(),
            source,
        })?;
        Ok(Bound { relation, version })
    }
}

impl fmt::Display for VersionRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let between = if index == 0 { "" } else { " || " };
            f.write_str(between)?;
            for (index, bound) in range.iter().enumerate() {
                let between = if index == 0 { "" } else { " " };
                write!(f, "{between}{bound}")?;
            }
        }
        Ok(())
    }
}

crate::text_form::serde_by_text!(VersionRanges);

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = RELATIONS
            .iter()
            .find(|(_, relation)| *relation == self.relation && *relation != Relation::Exactly)
            .map_or("", |(written, _)| *written);
        write!(f, "{written}{}", self.version)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Ranges, versions in them, and versions that are not.
    type Case = (
        &'static str,
        &'static [&'static str],
        &'static [&'static str],
    );

    const CASES: [Case; 11] = [
        ("v0.5.1", &["v0.5.1"], &["v0.5.0", "v0.5.2", "v0.5.1-rc.1"]),
        ("=v0.5.1", &["v0.5.1"], &["v0.5.0"]),
        (
            ">=v0.1.0",
            &["v0.1.0", "v9.0.0", "v0.2.0-rc.1"],
            &["v0.0.9", "v0.1.0-rc.1"],
        ),
        (">v0.1.0", &["v0.1.1", "v0.1.1-0"], &["v0.1.0"]),
        ("<=v0.1.0", &["v0.1.0", "v0.1.0-rc.1"], &["v0.1.1-0"]),
        ("<v0.3.0", &["v0.2.9", "v0.3.0-rc.1"], &["v0.3.0"]),
        ("<v0.3.0-0", &["v0.2.9"], &["v0.3.0-rc.1", "v0.3.0-0"]),
        (
            ">=v0.1.0 <v0.3.0 || v0.5.1",
            &["v0.1.0", "v0.2.7", "v0.2.0-rc.1", "v0.5.1"],
            &["v0.0.1", "v0.3.0", "v0.4.0", "v0.5.0", "v0.5.2"],
        ),
        (
            ">=v0.2.0 <v0.3.0",
            &["v0.2.0-rev1", "v0.2.0-rev10-b5.1"],
            &["v0.3.0-rev1", "v0.1.0-rev1"],
        ),
        (
            "<=v0.2.0-rev9",
            &["v0.2.0", "v0.2.0-rev9", "v0.2.0-rc.1"],
            &["v0.2.0-rev10", "v0.2.0-rev9-b1.1", "v0.2.1-rc.1"],
        ),
        // A range may hold no version; none follows from it.
        (">v0.3.0 <v0.1.0", &[], &["v0.1.0", "v0.2.0", "v0.3.0"]),
    ];

    #[test]
    fn a_version_is_in_the_ranges_or_not() {
        for (text, inside, outside) in CASES {
            let ranges: VersionRanges = text.parse().unwrap();
            for (versions, expected) in [(inside, true), (outside, false)] {
                for version in versions {
                    let is_inside = ranges.contains(&version.parse().unwrap());
                    assert_eq!(is_inside, expected, "{version} in {text}");
                }
            }
        }
    }

    #[test]
    fn ranges_are_written_as_they_are_read() {
        for (text, shown) in [
            (">=v0.1.0 <v0.3.0 || v0.5.1", ">=v0.1.0 <v0.3.0 || v0.5.1"),
            ("  =v0.5.1||>v1.0.0-rc.1 ", "v0.5.1 || >v1.0.0-rc.1"),
            ("<=v0.1.0\t>v0.0.1", "<=v0.1.0 >v0.0.1"),
        ] {
            let ranges: VersionRanges = text.parse().unwrap();
            assert_eq!(ranges.to_string(), shown);
            assert_eq!(shown.parse::<VersionRanges>().unwrap(), ranges);
        }
    }

    #[test]
    fn what_is_no_ranges_is_refused_with_its_place() {
        for empty in [
            "",
            " ",
            "||",
            "v0.1.0 ||",
            "|| v0.1.0",
            "v0.1.0 || || v0.2.0",
        ] {
            assert_eq!(
                empty.parse::<VersionRanges>(),
                Err(NotRanges::Empty),
                "{empty:?}"
            );
        }
        for (text, wrong) in [
            ("0.1.0", "0.1.0"),
            (">= v0.1.0", ">="),
            ("=>v0.1.0", "=>v0.1.0"),
            ("==v0.1.0", "==v0.1.0"),
            ("^v0.1.0", "^v0.1.0"),
            ("v0.1.x", "v0.1.x"),
            ("v0.1.0 - v0.2.0", "-"),
            (">=v0.1.0,<v0.3.0", ">=v0.1.0,<v0.3.0"),
            ("v0.1.0 | v0.2.0", "|"),
            (">=v0.1.0 <v0.3", "<v0.3"),
            ("*", "*"),
        ] {
            let error = text.parse::<VersionRanges>().unwrap_err();
            assert!(
                matches!(&error, NotRanges::Bound { bound, .. } if bound == wrong),
                "{text}: {error}"
            );
        }
    }
}
