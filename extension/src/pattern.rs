//! The pattern of an extension's updates: `kubernetes-v1.36.@v-%a.raw`, as in the transfer files of systemd-sysupdate.

use std::fmt;
use std::str::FromStr;

use crate::{Architecture, ExtensionVersion};

const VERSION: &str = "@v";
const ARCHITECTURE: &str = "%a";

/// A pattern of file names with one place for the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    before: String,
    after: String,
}

/// A text that is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no pattern of an extension's files: it names a file that ends with .raw, with @v once where the version stands, and %a where the architecture stands"
)]
pub struct NotAPattern(String);

impl FromStr for Pattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        let refused = || NotAPattern(text.chars().take(120).collect());
        let (before, after) = text.split_once(VERSION).ok_or_else(refused)?;
        let is_literal = |part: &str| {
            let plain = part.replace(ARCHITECTURE, "");
            !plain.contains(['@', '%', '/', '*', ' '])
        };
        let is_right = is_literal(before)
            && is_literal(after)
            && after.ends_with(".raw")
            && before.starts_with(|first: char| first.is_ascii_alphanumeric());
        is_right.then_some(()).ok_or_else(refused)?;
        Ok(Pattern {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }
}

impl Pattern {
    /// The version in a file's name; `None` if the name does not match.
    pub fn version_of(&self, file: &str, architecture: Architecture) -> Option<ExtensionVersion> {
        let filled = |part: &str| part.replace(ARCHITECTURE, architecture.name());
        let version = file
            .strip_prefix(&filled(&self.before))?
            .strip_suffix(&filled(&self.after))?;
        ExtensionVersion::new(version)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{VERSION}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_pattern_holds_the_version_and_the_architecture() {
        let pattern: Pattern = "kubernetes-v1.36.@v-%a.raw".parse().unwrap();
        assert_eq!(pattern.to_string(), "kubernetes-v1.36.@v-%a.raw");
        let version = |file| {
            let found = pattern.version_of(file, Architecture::X86_64);
            found.map(|version| version.as_str().to_owned())
        };
        assert_eq!(
            version("kubernetes-v1.36.3-x86-64.raw"),
            Some("3".to_owned())
        );
        for other in [
            "kubernetes-v1.36.3-arm64.raw",
            "kubernetes-v1.37.3-x86-64.raw",
            "kubernetes-v1.36.-x86-64.raw",
            "kubernetes-v1.36.x-x86-64.raw",
            "kubernetes-v1.36.3-x86-64.raw.sig",
        ] {
            assert_eq!(version(other), None, "{other}");
        }
    }

    #[test]
    fn other_texts_are_no_patterns() {
        for text in [
            "",
            "@v",
            "a-@v",
            "a-@v-@v.raw",
            "a/@v.raw",
            "@v.raw",
            "a-%b@v.raw",
            "a-*@v.raw",
        ] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }
}
