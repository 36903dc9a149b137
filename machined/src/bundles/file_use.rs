//! The files of extensions in a bundle, and whether the machine keeps them.
//!
//! ```text
//! for another architecture, by its name                       left out
//! named by the config, whoever brings it                      kept: the config has its digest
//! not named yet; an upload, or an approved bundle             kept, for a config that names it later
//! not named yet; a stick that nobody has approved             left out: whoever plugs one in could fill the disk
//! another name of a content that is kept                      left out: each name would take room
//! ```
//!
//! Nothing looks into a file until the config names it: a file system that nobody vouches for is not given to the kernel.

use std::collections::BTreeSet;
use std::fmt;

use instar_extension::{Architecture, FileName};
use serde::Serialize;

use crate::values::Digest;

/// A file of an extension in a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundFile {
    /// Its name.
    pub name: String,
    /// The digest of its content.
    pub digest: Digest,
    /// The use that the machine has for it.
    pub use_of_it: UseOfFile,
}

/// The use that the machine has for a file of an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum UseOfFile {
    /// That is not decided yet.
    NotDecided,
    /// It is kept.
    Kept,
    /// It is for another architecture.
    OtherArchitecture,
    /// The config does not name it, and nobody has approved the bundle.
    NotNamed,
    /// The config does not name it, and the machine has no disk to keep it on.
    NoDisk,
    /// The same content is kept under another name.
    OtherName,
}

/// The facts about a machine and a bundle that decide about its files.
#[derive(Debug, Clone, Copy)]
pub struct FileFacts<'a> {
    /// The digests of files that the config names.
    pub named: &'a BTreeSet<Digest>,
    /// Whether a caller of the API has brought the bundle, or the config or a person has approved it.
    pub is_approved: bool,
    /// Whether the machine keeps files that are not in use.
    pub has_disk: bool,
}

impl FileFacts<'_> {
    /// Decides about a file.
    pub fn use_of(&self, name: &str, digest: Digest) -> UseOfFile {
        let build = name.parse::<FileName>().ok().and_then(|it| it.build);
        if build.is_some_and(|(_, architecture)| architecture != Architecture::OWN) {
            return UseOfFile::OtherArchitecture;
        }
        if self.named.contains(&digest) {
            return UseOfFile::Kept;
        }
        match (self.has_disk, self.is_approved) {
            (false, _) => UseOfFile::NoDisk,
            (true, false) => UseOfFile::NotNamed,
            (true, true) => UseOfFile::Kept,
        }
    }
}

impl fmt::Display for FoundFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FoundFile { name, digest, .. } = self;
        match self.use_of_it {
            UseOfFile::NotDecided => write!(f, "The bundle has the file {name} ({digest})."),
            UseOfFile::Kept => write!(
                f,
                "The file {name} ({digest}) is on this machine now, for extensions that name it."
            ),
            UseOfFile::OtherArchitecture => write!(
                f,
                "The file {name} is not kept: it is for another architecture than this machine's."
            ),
            UseOfFile::NotNamed => write!(
                f,
                "The file {name} ({digest}) is not kept: no extension of this machine's config names it, and nobody has approved the \
                 bundle."
            ),
            UseOfFile::NoDisk => write!(
                f,
                "The file {name} ({digest}) is not kept: no extension of this machine's config names it, and the machine has no disk."
            ),
            UseOfFile::OtherName => write!(
                f,
                "The file {name} ({digest}) is on this machine under another name: the bundle has it more than once."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_kept_if_the_config_names_it_or_the_bundle_is_approved() {
        let (named, other) = (Digest::of(b"named"), Digest::of(b"other"));
        let in_config = BTreeSet::from([named]);
        for (digest, is_approved, has_disk, expected) in [
            (named, false, false, UseOfFile::Kept),
            (named, false, true, UseOfFile::Kept),
            (named, true, false, UseOfFile::Kept),
            (named, true, true, UseOfFile::Kept),
            (other, false, false, UseOfFile::NoDisk),
            (other, false, true, UseOfFile::NotNamed),
            (other, true, false, UseOfFile::NoDisk),
            (other, true, true, UseOfFile::Kept),
        ] {
            let facts = FileFacts {
                named: &in_config,
                is_approved,
                has_disk,
            };
            let decided = facts.use_of("site.raw", digest);
            assert_eq!(decided, expected, "{digest} {facts:?}");
        }
    }

    #[test]
    fn a_file_for_another_architecture_is_left_out() {
        let named = BTreeSet::from([Digest::of(b"named")]);
        let facts = FileFacts {
            named: &named,
            is_approved: true,
            has_disk: true,
        };
        for architecture in Architecture::ALL {
            let name = format!("site-v1-{architecture}.raw");
            let expected = match architecture == Architecture::OWN {
                true => UseOfFile::Kept,
                false => UseOfFile::OtherArchitecture,
            };
            assert_eq!(facts.use_of(&name, Digest::of(b"named")), expected);
        }
    }

    #[test]
    fn a_person_reads_why_a_file_is_not_kept() {
        for (use_of_it, expected) in [
            (UseOfFile::NotDecided, "The bundle has the file site.raw"),
            (UseOfFile::Kept, "is on this machine now"),
            (UseOfFile::OtherArchitecture, "for another architecture"),
            (UseOfFile::NotNamed, "nobody has approved the bundle"),
            (UseOfFile::NoDisk, "the machine has no disk"),
            (UseOfFile::OtherName, "under another name"),
        ] {
            let file = FoundFile {
                name: "site.raw".to_owned(),
                digest: Digest::of(b"x"),
                use_of_it,
            };
            assert!(file.to_string().contains(expected), "{file}");
        }
    }
}
