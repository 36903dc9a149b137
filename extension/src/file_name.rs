//! The name of an extension's file: `NAME.raw`, or `NAME-vVERSION-ARCHITECTURE.raw`.

use std::fmt;
use std::str::FromStr;

use crate::{Architecture, ExtensionVersion};

const SUFFIX: &str = ".raw";
/// Limit on the length of a name: it becomes a file name with a prefix and a suffix.
const LONGEST: usize = 64;

/// The name of an extension: that of its release file, and of the link by which it is merged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtensionName(String);

/// Why a text is no name of an extension or of its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAName {
    /// The text has other characters, or too many.
    #[error(
        "{0:?} is no name of an extension: it has 1 to 64 letters, digits, '-', '_' and '.', and begins with a letter or a digit"
    )]
    Characters(String),
    /// The file has another suffix.
    #[error("{0:?} is no file of an extension: its name does not end with .raw")]
    Suffix(String),
    /// The text after `-v` ends with no architecture.
    #[error("{0:?} has a version, and does not end with -x86-64.raw or -arm64.raw")]
    Architecture(String),
}

impl FromStr for ExtensionName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let begins_right = text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins_right || text.len() > LONGEST || !text.bytes().all(is_right) {
            return Err(NotAName::Characters(text.to_owned()));
        }
        Ok(ExtensionName(text.to_owned()))
    }
}

impl ExtensionName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExtensionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The parts of a file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName {
    /// The extension's name: all up to the first `-v` that a digit follows.
    pub name: ExtensionName,
    /// Its version and architecture, if the name tells them.
    pub build: Option<(ExtensionVersion, Architecture)>,
}

impl FromStr for FileName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let stem = text
            .strip_suffix(SUFFIX)
            .ok_or_else(|| NotAName::Suffix(text.to_owned()))?;
        let Some((name, build)) = split_at_version(stem) else {
            return Ok(FileName {
                name: stem.parse()?,
                build: None,
            });
        };
        let found = Architecture::ALL.into_iter().find_map(|architecture| {
            let version = build.strip_suffix(architecture.name())?.strip_suffix('-')?;
            Some((ExtensionVersion::new(version)?, architecture))
        });
        let build = found.ok_or_else(|| NotAName::Architecture(text.to_owned()))?;
        Ok(FileName {
            name: name.parse()?,
            build: Some(build),
        })
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.build {
            None => write!(f, "{}{SUFFIX}", self.name),
            Some((version, architecture)) => {
                write!(f, "{}-v{version}-{architecture}{SUFFIX}", self.name)
            }
        }
    }
}

/// Splits at the first `-v` that a digit follows.
fn split_at_version(stem: &str) -> Option<(&str, &str)> {
    let (at, _) = stem
        .match_indices("-v")
        .find(|(at, _)| stem[at + 2..].starts_with(|next: char| next.is_ascii_digit()))?;
    Some((&stem[..at], &stem[at + 2..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_of_files_are_read_and_written() {
        for (text, name, version) in [
            ("kubernetes.raw", "kubernetes", None),
            (
                "kubernetes-v1.36.3-x86-64.raw",
                "kubernetes",
                Some("1.36.3"),
            ),
            ("k3s-v1.33.1+k3s1-arm64.raw", "k3s", Some("1.33.1+k3s1")),
            ("nvidia-vgpu.raw", "nvidia-vgpu", None),
        ] {
            let read: FileName = text.parse().unwrap();
            assert_eq!(read.name.as_str(), name);
            let found = read.build.as_ref().map(|(version, _)| version.as_str());
            assert_eq!(found, version);
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn other_names_are_refused() {
        for text in [
            "kubernetes",
            ".raw",
            "../up.raw",
            "a/b.raw",
            "-v1.2.raw",
            "k-v1.2.raw",
            "k-v1.2-riscv.raw",
            "k-v1.2.conf",
        ] {
            assert!(text.parse::<FileName>().is_err(), "{text}");
        }
    }
}
