//! A request to the temporary registry: which document or blob it is for, and which part of that. Values without side effects.

use std::ops::Range;

use percent_encoding::percent_decode_str;

use crate::values::Digest;

/// Limit on a repository's name, from the distribution specification.
const LONGEST_REPOSITORY: usize = 255;
/// Limit on a tag.
const LONGEST_TAG: usize = 128;

/// The document or blob that a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// `/v2/`: whether this is a registry.
    Base,
    /// The manifest or index behind a tag.
    Tag {
        /// The repository.
        repository: String,
        /// The tag.
        tag: String,
    },
    /// The list of a repository's tags.
    Tags {
        /// The repository.
        repository: String,
    },
    /// A manifest or index by its digest.
    Manifest(Digest),
    /// A config or layer by its digest.
    Blob(Digest),
    /// Anything else.
    Nothing,
}

impl Wanted {
    /// Reads a path, without its query.
    pub(super) fn of(path: &str) -> Self {
        if path == "/v2/" || path == "/v2" {
            return Wanted::Base;
        }
        let read = || {
            let rest = path.strip_prefix("/v2/")?;
            let (rest, last) = rest.rsplit_once('/')?;
            let (repository, kind) = rest.rsplit_once('/')?;
            if repository.is_empty() || repository.len() > LONGEST_REPOSITORY {
                return None;
            }
            match (kind, last.parse::<Digest>()) {
                ("manifests", Ok(digest)) => Some(Wanted::Manifest(digest)),
                ("manifests", Err(_)) if last.len() <= LONGEST_TAG => Some(Wanted::Tag {
                    repository: repository.to_owned(),
                    tag: last.to_owned(),
                }),
                ("blobs", Ok(digest)) => Some(Wanted::Blob(digest)),
                ("tags", Err(_)) if last == "list" => Some(Wanted::Tags {
                    repository: repository.to_owned(),
                }),
                _ => None,
            }
        };
        read().unwrap_or(Wanted::Nothing)
    }
}

/// The registry of whose image a mirror is asked: containerd and machined send its name in the query `ns`.
pub(super) fn registry_of(query: Option<&str>) -> Option<String> {
    let mut pairs = query?.split('&');
    let registry = pairs.find_map(|pair| pair.strip_prefix("ns="))?;
    let registry = percent_decode_str(registry).decode_utf8().ok()?;
    Some(registry.into_owned()).filter(|registry| !registry.is_empty())
}

/// The part of a blob that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// These bytes.
    Bytes(Range<u64>),
    /// There are no such bytes.
    Unsatisfiable,
}

impl Part {
    /// Reads the header `Range` for a blob of this size. A form that is not understood means the whole, as the standard allows.
    pub(super) fn of(header: Option<&str>, size: u64) -> Self {
        let Some(spec) = header.and_then(|header| header.strip_prefix("bytes=")) else {
            return Part::Whole;
        };
        let Some((first, last)) = spec.split_once('-') else {
            return Part::Whole;
        };
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().ok(),
            false => None,
        };
        let range = match (number(first), last.is_empty(), number(last)) {
            (Some(first), true, _) => first..size,
            (Some(first), false, Some(last)) if first <= last => {
                first..last.saturating_add(1).min(size)
            }
            // The last bytes.
            (None, false, Some(count)) if first.is_empty() => size.saturating_sub(count)..size,
            _ => return Part::Whole,
        };
        match range.is_empty() {
            true => Part::Unsatisfiable,
            false => Part::Bytes(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_documents_and_blobs() {
        let digest = Digest::of(b"blob");
        let tag = |repository: &str, tag: &str| Wanted::Tag {
            repository: repository.to_owned(),
            tag: tag.to_owned(),
        };
        for (path, expected) in [
            ("/v2/".to_owned(), Wanted::Base),
            ("/v2".to_owned(), Wanted::Base),
            ("/v2/web/manifests/v1".to_owned(), tag("web", "v1")),
            (
                "/v2/site/blobs/manifests/blobs".to_owned(),
                tag("site/blobs", "blobs"),
            ),
            (
                format!("/v2/site/web/manifests/{digest}"),
                Wanted::Manifest(digest),
            ),
            (format!("/v2/site/web/blobs/{digest}"), Wanted::Blob(digest)),
            ("/v2/site/web/blobs/v1".to_owned(), Wanted::Nothing),
            (
                "/v2/site/web/tags/list".to_owned(),
                Wanted::Tags {
                    repository: "site/web".to_owned(),
                },
            ),
            ("/v2/web/tags/other".to_owned(), Wanted::Nothing),
            (format!("/v2/site/web/referrers/{digest}"), Wanted::Nothing),
            ("/v2/web/blobs/uploads/".to_owned(), Wanted::Nothing),
            ("/v2//manifests/v1".to_owned(), Wanted::Nothing),
            ("/v2/_catalog".to_owned(), Wanted::Nothing),
            (
                format!("/v2/web/manifests/{}", "v".repeat(129)),
                Wanted::Nothing,
            ),
            (
                format!("/v2/{}/manifests/v1", "w".repeat(256)),
                Wanted::Nothing,
            ),
            ("/".to_owned(), Wanted::Nothing),
            (String::new(), Wanted::Nothing),
        ] {
            assert_eq!(Wanted::of(&path), expected, "{path}");
        }
    }

    #[test]
    fn a_query_may_name_the_registry_of_the_image() {
        for (query, expected) in [
            (None, None),
            (Some(""), None),
            (Some("ns="), None),
            (Some("n=100"), None),
            (Some("ns=r.io"), Some("r.io")),
            (Some("n=1&ns=r.io%3A5000"), Some("r.io:5000")),
            (Some("ns=%ff"), None),
        ] {
            assert_eq!(registry_of(query).as_deref(), expected, "{query:?}");
        }
    }

    #[test]
    fn ranges_are_parts_of_a_blob() {
        use Part::{Bytes, Unsatisfiable, Whole};
        for (header, expected) in [
            (None, Whole),
            (Some("bytes=0-"), Bytes(0..10)),
            (Some("bytes=3-"), Bytes(3..10)),
            (Some("bytes=3-5"), Bytes(3..6)),
            (Some("bytes=3-99"), Bytes(3..10)),
            (Some("bytes=9-9"), Bytes(9..10)),
            (Some("bytes=-4"), Bytes(6..10)),
            (Some("bytes=-99"), Bytes(0..10)),
            (Some("bytes=10-"), Unsatisfiable),
            (Some("bytes=-0"), Unsatisfiable),
            (Some("bytes=5-3"), Whole),
            (Some("bytes=1-2,4-5"), Whole),
            (Some("bytes=-"), Whole),
            (Some("bytes=+1-2"), Whole),
            (Some("lines=1-2"), Whole),
            (Some(""), Whole),
        ] {
            assert_eq!(Part::of(header, 10), expected, "{header:?}");
        }
        assert_eq!(Part::of(Some("bytes=0-"), 0), Unsatisfiable);
        let huge = format!("bytes=0-{}", u64::MAX);
        assert_eq!(Part::of(Some(&huge), 10), Bytes(0..10));
    }
}
