//! Names of images in the usual form: `[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`.
//!
//! The rules are those of the distribution project's `reference` package: a first part with a dot, a colon or the
//! name `localhost` is a registry, otherwise the registry is docker.io, where one-word names live under `library/`.

use std::fmt;
use std::str::FromStr;

use super::digest::{Digest, DigestError};

/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The tag of names with neither tag nor digest.
const DEFAULT_TAG: &str = "latest";
/// Limits on the length of repository and tag, from the distribution specification.
const LONGEST_REPOSITORY: usize = 255;
const LONGEST_TAG: usize = 128;

/// A parsed image name, in full: registry and repository, and a tag or a digest or both.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text does not name an image.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReferenceError {
    /// The text is empty.
    #[error("the image name is empty")]
    Empty,
    /// The part before the first slash is no host.
    #[error("{0:?} is not a registry: HOST or HOST:PORT is expected")]
    Registry(String),
    /// The repository is not valid.
    #[error(
        "{0:?} is not a repository: parts of lower-case letters, digits and single . _ - between slashes are expected, \
         at most {LONGEST_REPOSITORY} bytes"
    )]
    Repository(String),
    /// The tag is not valid.
    #[error("{0:?} is not a tag: at most {LONGEST_TAG} letters, digits, . _ - are expected")]
    Tag(String),
    /// The digest is not valid.
    #[error("the image name ends in an unusable digest")]
    Digest(#[from] DigestError),
}

impl ImageReference {
    /// `HOST` or `HOST:PORT`, as written in the name (docker.io is not replaced by its real host).
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path at the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag, if there is one; a digest beside it takes precedence.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if there is one.
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The selector of the manifest in a request: the digest, else the tag.
    pub fn selector(&self) -> String {
        match (self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    /// The same repository with only this digest.
    pub fn at(&self, digest: Digest) -> Self {
        ImageReference {
            tag: None,
            digest: Some(digest),
            ..self.clone()
        }
    }
}

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        let (text, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.parse()?)),
            None => (text, None),
        };
        // A colon after the last slash starts a tag; one before it starts a port.
        let path_starts = text.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match text[path_starts..].split_once(':') {
            Some((last, tag)) => (&text[..path_starts + last.len()], Some(checked_tag(tag)?)),
            None => (text, None),
        };
        let (registry, path) = match name.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => {
                (checked_registry(host)?, path)
            }
            _ => (DEFAULT_REGISTRY, name),
        };
        let registry = if registry == "index.docker.io" {
            DEFAULT_REGISTRY
        } else {
            registry
        };
        let repository = if registry == DEFAULT_REGISTRY && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        if !is_repository(&repository) {
            return Err(ReferenceError::Repository(shown(path)));
        }
        let tag = tag.or_else(|| digest.is_none().then_some(DEFAULT_TAG));
        Ok(ImageReference {
            registry: registry.to_owned(),
            repository,
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

fn checked_registry(host: &str) -> Result<&str, ReferenceError> {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => (address, Some(port.strip_prefix(':').unwrap_or("bad"))),
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let bracketed = host.starts_with('[');
    let name_is_good = if bracketed {
        name.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        name.split('.').all(|label| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
    };
    let port_is_good = port.is_none_or(|port| {
        port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|number| number > 0)
    });
    if name_is_good && port_is_good {
        Ok(host)
    } else {
        Err(ReferenceError::Registry(shown(host)))
    }
}

fn is_repository(path: &str) -> bool {
    path.len() <= LONGEST_REPOSITORY && path.split('/').all(is_path_component)
}

/// Whether a part of a path is valid: letters and digits, with one separator between: `.`, `_`, `__` or any number of `-`.
fn is_path_component(component: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let (Some(first), Some(last)) = (component.bytes().next(), component.bytes().last()) else {
        return false;
    };
    let separators = component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    alphanumeric(first)
        && alphanumeric(last)
        && component
            .bytes()
            .all(|byte| alphanumeric(byte) || matches!(byte, b'.' | b'_' | b'-'))
        && separators
            .into_iter()
            .all(|run| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|b| b == b'-'))
}

fn checked_tag(tag: &str) -> Result<&str, ReferenceError> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good = tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(word)
        && tag
            .bytes()
            .all(|byte| word(byte) || matches!(byte, b'.' | b'-'));
    if good {
        Ok(tag)
    } else {
        Err(ReferenceError::Tag(shown(tag)))
    }
}

/// Shortens text for an error: it may be hostile.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

crate::text_form::serde_by_text!(ImageReference);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_name_is_measured_in_full() {
        let longest = "a".repeat(LONGEST_REPOSITORY);
        assert!(format!("r.io/{longest}").parse::<ImageReference>().is_ok());
        assert!(longest.parse::<ImageReference>().is_err());
    }

    #[test]
    fn short_names_are_completed() {
        for (text, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("test.com:5000", "docker.io/library/test.com:5000"),
            ("grafana/grafana:11", "docker.io/grafana/grafana:11"),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
            ("localhost/app", "localhost/app:latest"),
            (
                "10.0.2.2:5000/instar/installer:v0.2.0",
                "10.0.2.2:5000/instar/installer:v0.2.0",
            ),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("[fd00::1]/app", "[fd00::1]/app:latest"),
            ("r.io/a__b/c--d/e.f:T_1.x-y", "r.io/a__b/c--d/e.f:T_1.x-y"),
        ] {
            assert_eq!(text.parse::<ImageReference>().unwrap().to_string(), full);
        }
    }

    #[test]
    fn a_digest_wins_over_a_tag() {
        let both: ImageReference = format!("r.io/app:v1@sha256:{HEX}").parse().unwrap();
        assert_eq!(both.tag(), Some("v1"));
        assert_eq!(both.selector(), format!("sha256:{HEX}"));
        let alone: ImageReference = format!("r.io/app@sha256:{HEX}").parse().unwrap();
        assert_eq!(alone.tag(), None);
        assert_eq!(alone.to_string(), format!("r.io/app@sha256:{HEX}"));
        assert_eq!(both.at(Digest::of(b"")), alone);
    }

    #[test]
    fn hostile_names_are_refused_by_part() {
        use ReferenceError as E;
        assert_eq!("".parse::<ImageReference>(), Err(E::Empty));
        for bad in [
            "r.io:0/a",
            "r.io:65536/a",
            "r.io:/a",
            "r.io:+80/a",
            "-a.io/a",
            "a..io/a",
            "[::g]/a",
            "[::1]x/a",
            "é.io/a",
        ] {
            assert!(
                matches!(bad.parse::<ImageReference>(), Err(E::Registry(_))),
                "{bad}"
            );
        }
        for bad in [
            "r.io/",
            "/a",
            "r.io//a",
            "r.io/../a",
            "r.io/./a",
            "r.io/A",
            "r.io/a b",
            "r.io/a%2f",
            "r.io/a?x",
            "r.io/a#x",
            "r.io/a..b",
            "r.io/a___b",
            "r.io/-a",
            "r.io/a_",
            "http://r.io/a",
            "r.io/a\n",
            "r.io/a/",
            ":tag",
            &"a/".repeat(200),
        ] {
            assert!(
                matches!(
                    bad.parse::<ImageReference>(),
                    Err(E::Repository(_) | E::Registry(_))
                ),
                "{bad}"
            );
        }
        for bad in [
            "a:",
            "a:.x",
            "a:-x",
            "a:x y",
            "a:x:y",
            "a:é",
            &format!("a:{}", "x".repeat(129)),
        ] {
            assert!(
                matches!(bad.parse::<ImageReference>(), Err(E::Tag(_))),
                "{bad}"
            );
        }
        for bad in [
            "a@",
            "a@sha256:00",
            &format!("a@sha512:{HEX}{HEX}"),
            &format!("a@sha256:{HEX}@sha256:{HEX}"),
        ] {
            assert!(
                matches!(bad.parse::<ImageReference>(), Err(E::Digest(_))),
                "{bad}"
            );
        }
    }
}
