//! Tags of an image's releases, in three levels: `2.6.2`, `2.6.2-rev1` and `2.6.2-rev1-b5.1`.
//!
//! ```text
//! 2.6               pins a series of versions; moves to each next one
//! 2.6.2             pins the version; moves with every rebuild and fix of it
//! 2.6.2-rev1        pins the revision too, which the image's owner counts up; moves when the same revision is built anew
//! 2.6.2-rev1-b5.1   pins one build, and never moves
//! ```
//!
//! Other tags (`latest`, `v1.0.0-rc.1`, a commit's digest) are not release tags, and nothing is concluded from them.

use std::fmt;
use std::str::FromStr;

use super::revision::{Revision, number};
use super::version::Version;

/// The least and the most numbers of a version in a tag. One number alone may be a date or a commit's digest.
const NUMBERS: std::ops::RangeInclusive<usize> = 2..=4;
/// A version has at least these numbers.
const WHOLE: usize = 3;
/// Limit on the length of a tag, from the distribution specification.
const LONGEST: usize = 128;

/// A release tag. The order is by number, from left to right: `rev10` comes after `rev9`, and a tag before those that say more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReleaseTag {
    /// The version's numbers, `NUMBERS` of them.
    version: Vec<u64>,
    /// Without a revision there is no build.
    revision: Option<Revision>,
    /// Whether a `v` is in front. Last, because it matters least for the order.
    has_v: bool,
}

/// How much a tag pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The version.
    Version,
    /// The revision of a version.
    Revision,
    /// One build.
    Build,
}

/// The text is not a release tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a release tag: expected something like 2.6.2, 2.6.2-rev1 or 2.6.2-rev1-b5.1")]
pub struct NotAReleaseTag(String);

/// A tag and an image's version label that cannot both be true.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag {tag} says {said}, and the image's label says {label}")]
pub struct Contradiction {
    /// The tag.
    pub tag: ReleaseTag,
    /// The part of the tag that the label contradicts, in words.
    pub said: String,
    /// The label.
    pub label: Version,
}

impl ReleaseTag {
    /// Returns how much the tag pins.
    pub fn level(&self) -> Level {
        match self.revision {
            None => Level::Version,
            Some(Revision { build: None, .. }) => Level::Revision,
            Some(Revision { build: Some(_), .. }) => Level::Build,
        }
    }

    /// Whether the tag names one version: the tag `2.6` leads to 2.6.2 today and to 2.6.3 tomorrow.
    pub fn is_whole_version(&self) -> bool {
        self.version.len() >= WHOLE
    }

    /// Whether both name the same version and the same revision of it, or none: they differ at most in the build.
    pub fn is_same_revision(&self, other: &Self) -> bool {
        let number = |tag: &Self| tag.revision.map(|revision| revision.number);
        self.version == other.version && number(self) == number(other)
    }

    /// Compares the tag with the version label of the image behind it. What only one of both says is no contradiction: the tag `2.6` may
    /// lead to the version v2.6.2, and the tag `2.6.2-rev1` to a label that knows no revisions.
    ///
    /// # Errors
    /// Both cannot be true.
    pub fn check_label(&self, label: &Version) -> Result<(), Box<Contradiction>> {
        let contradiction = |said: String| {
            Err(Box::new(Contradiction {
                tag: self.clone(),
                said,
                label: label.clone(),
            }))
        };
        let told = label.to_string().parse::<Self>().ok();
        let numbers = label.numbers();
        let same_numbers = self.version.iter().zip(&numbers).all(|(own, its)| own == its)
            // A fourth number is not in the label.
            && self.version.len() <= numbers.len();
        // A pre-release comes before the version.
        if !same_numbers || label.is_pre_release() {
            return contradiction(format!("version {}", Numbers(&self.version)));
        }
        let theirs = told.and_then(|told| told.revision);
        let (Some(own), Some(theirs)) = (self.revision, theirs) else {
            return Ok(());
        };
        if own.number != theirs.number {
            return contradiction(format!("revision {}", own.number));
        }
        match (own.build, theirs.build) {
            (Some(own), Some(theirs)) if own != theirs => {
                contradiction(format!("build {}.{}", own.commit, own.rebuild))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for ReleaseTag {
    type Err = NotAReleaseTag;

    fn from_str(text: &str) -> Result<Self, NotAReleaseTag> {
        let tag = match text.len() <= LONGEST {
            true => parse(text),
            false => None,
        };
        // The text may be hostile.
        tag.ok_or_else(|| NotAReleaseTag(text.chars().take(LONGEST).collect()))
    }
}

fn parse(text: &str) -> Option<ReleaseTag> {
    let (has_v, text) = match text.strip_prefix('v') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (version, revision) = match text.split_once('-') {
        None => (text, None),
        Some((version, revision)) => (version, Some(Revision::parse(revision)?)),
    };
    let version: Vec<u64> = version.split('.').map(number).collect::<Option<_>>()?;
    NUMBERS.contains(&version.len()).then_some(ReleaseTag {
        version,
        revision,
        has_v,
    })
}

/// The numbers of a version, with dots between them.
struct Numbers<'a>(&'a [u64]);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, number) in self.0.iter().enumerate() {
            let between = if index == 0 { "" } else { "." };
            write!(f, "{between}{number}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ReleaseTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = if self.has_v { "v" } else { "" };
        write!(f, "{v}{}", Numbers(&self.version))?;
        match self.revision {
            Some(revision) => write!(f, "-{revision}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cmp::Ordering;

    use super::*;

    fn tag(text: &str) -> ReleaseTag {
        text.parse().unwrap()
    }

    #[test]
    fn each_level_is_read_and_written() {
        for (text, level) in [
            ("2.6", Level::Version),
            ("2.6.2", Level::Version),
            ("v0.2.0", Level::Version),
            ("1.2.3.4", Level::Version),
            ("2.6.2-rev1", Level::Revision),
            ("v2.6.2-rev10", Level::Revision),
            ("2.6.2-rev1-b5.1", Level::Build),
            ("v0.0.0-rev0-b0.0", Level::Build),
            ("2.6.2-rev1-b18446744073709551615.1", Level::Build),
        ] {
            assert_eq!(tag(text).level(), level, "{text}");
            assert_eq!(tag(text).to_string(), text);
        }
    }

    #[test]
    fn fewer_than_three_numbers_name_no_version() {
        for (text, expected) in [
            ("2.6", false),
            ("v2.6", false),
            ("2.6-rev1", false),
            ("2.6.2", true),
            ("2.6.2-rev1", true),
            ("1.2.3.4", true),
        ] {
            assert_eq!(tag(text).is_whole_version(), expected, "{text}");
        }
    }

    #[test]
    fn other_tags_are_no_release_tags() {
        for text in [
            "",
            "v",
            "latest",
            "2",
            "20260826",
            "1.2.3.4.5",
            "2.6.",
            ".6.2",
            "2..6",
            "2.6.x",
            "2.06.2",
            "2.+6.2",
            "V2.6.2",
            "vv2.6.2",
            "2.6.2-",
            "2.6.2-rc.1",
            "v0.2.0-kernel",
            "2.6.2-rev",
            "2.6.2-rev01",
            "2.6.2-rev-1",
            "2.6.2-Rev1",
            "2.6.2-b5.1",
            "2.6.2-rev1-",
            "2.6.2-rev1-5.1",
            "2.6.2-rev1-b5",
            "2.6.2-rev1-b5.1.2",
            "2.6.2-rev1-b.1",
            "2.6.2-rev1-build5.1",
            "2.6.2-rev1-b5.1-x",
            "2.6.2-rev1+5.1",
            "2.6.2 ",
            "2.6.2\n",
            "2.6.18446744073709551616",
            &format!("2.{}", "1".repeat(LONGEST)),
        ] {
            text.parse::<ReleaseTag>().unwrap_err();
        }
    }

    #[test]
    fn numbers_decide_the_order_from_left_to_right() {
        let in_order = [
            "2.6",
            "2.6.2",
            "v2.6.2",
            "2.6.2-rev1",
            "2.6.2-rev1-b5.1",
            "2.6.2-rev1-b5.9",
            "2.6.2-rev1-b5.10",
            "2.6.2-rev1-b10.1",
            "2.6.2-rev9",
            "2.6.2-rev10",
            "2.6.10",
            "2.10.0",
            "10.0.0",
        ];
        assert!(in_order.map(tag).is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn a_build_changes_no_revision() {
        for (one, other, expected) in [
            ("2.6.2", "v2.6.2", true),
            ("2.6.2-rev1", "2.6.2-rev1-b5.1", true),
            ("2.6.2-rev1-b5.1", "2.6.2-rev1-b5.2", true),
            ("2.6.2-rev1", "2.6.2-rev2", false),
            ("2.6.2-rev1-b5.1", "2.6.2-rev2-b5.1", false),
            ("2.6.2", "2.6.2-rev1", false),
            ("2.6.2-rev1", "2.6.3-rev1", false),
            ("2.6", "2.6.0", false),
        ] {
            let (one, other) = (tag(one), tag(other));
            assert_eq!(one.is_same_revision(&other), expected, "{one} {other}");
            assert_eq!(other.is_same_revision(&one), expected, "{other} {one}");
        }
    }

    #[test]
    fn a_label_contradicts_a_tag_only_where_both_speak() {
        for (text, label, said) in [
            ("v0.2.0", "v0.2.0", None),
            ("0.2.0", "v0.2.0", None),
            ("0.2", "v0.2.5", None),
            ("v0.2.0", "v0.3.0", Some("version 0.2.0")),
            ("0.2", "v0.3.0", Some("version 0.2")),
            ("0.2.0.1", "v0.2.0", Some("version 0.2.0.1")),
            // A pre-release is not yet the version.
            ("v0.2.0", "v0.2.0-rc.1", Some("version 0.2.0")),
            ("0.2.0-rev1", "v0.2.0-rc.1", Some("version 0.2.0")),
            // The label says less.
            ("0.2.0-rev1", "v0.2.0", None),
            ("0.2.0-rev1-b5.1", "v0.2.0", None),
            ("0.2.0-rev1-b5.1", "v0.2.0-rev1", None),
            ("0.2.0-rev1", "v0.2.1", Some("version 0.2.0")),
            // The tag says less.
            ("0.2.0", "v0.2.0-rev1-b5.1", None),
            ("0.2.0-rev1", "v0.2.0-rev1-b5.1", None),
            // Both say the same, or not.
            ("0.2.0-rev1", "v0.2.0-rev1", None),
            ("0.2.0-rev1", "v0.2.0-rev10", Some("revision 1")),
            ("0.2.0-rev1-b5.1", "v0.2.0-rev1-b5.1", None),
            ("0.2.0-rev1-b5.1", "v0.2.0-rev1-b5.2", Some("build 5.1")),
            ("0.2.0-rev1-b5.1", "v0.2.0-rev2-b5.1", Some("revision 1")),
        ] {
            let found = tag(text).check_label(&label.parse().unwrap()).err();
            let found = found.map(|contradiction| contradiction.said);
            assert_eq!(found.as_deref(), said, "{text} and {label}");
        }
        let both = tag("v0.2.0").check_label(&"v0.3.0".parse().unwrap());
        let both = both.unwrap_err().to_string();
        assert_eq!(
            both,
            "the tag v0.2.0 says version 0.2.0, and the image's label says v0.3.0"
        );
    }

    /// Returns all tags of these few numbers: enough for every way in which two or three of them differ.
    fn every_tag() -> Vec<ReleaseTag> {
        let versions = ["1.9", "1.10", "1.9.0", "2.0.1"];
        let revisions = ["", "-rev0", "-rev9", "-rev10"];
        let builds = ["", "-b1.9", "-b1.10", "-b10.0"];
        let mut tags = Vec::new();
        for v in ["", "v"] {
            for version in versions {
                for revision in revisions {
                    for build in builds
                        .iter()
                        .filter(|it| it.is_empty() || !revision.is_empty())
                    {
                        let text = format!("{v}{version}{revision}{build}");
                        assert_eq!(tag(&text).to_string(), text);
                        tags.push(tag(&text));
                    }
                }
            }
        }
        tags
    }

    #[test]
    fn the_order_is_total() {
        let tags = every_tag();
        assert_eq!(tags.len(), 104);
        for a in &tags {
            for b in &tags {
                assert_eq!(a.cmp(b), b.cmp(a).reverse(), "{a} and {b}");
                assert_eq!(a.cmp(b) == Ordering::Equal, a.to_string() == b.to_string());
                for c in &tags {
                    assert!(!(a <= b && b <= c) || a <= c, "{a}, {b} and {c}");
                }
            }
        }
    }
}
