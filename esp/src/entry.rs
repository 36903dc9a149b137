//! The content of a boot entry: a Type #1 entry of the Boot Loader Specification.

use std::{
    fmt,
    io::{self, Read},
};

use blake3::Hash;
use thiserror::Error;

use crate::{name::EntryName, slot::Slot};

/// The expected content of a file: digest and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// BLAKE3 of its content.
    pub blake3: Hash,
    /// Its size in bytes.
    pub bytes: u64,
}

impl FileDigest {
    /// The digest and size of this content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self {
            blake3: blake3::hash(content),
            bytes: content.len() as u64,
        }
    }

    /// The digest and size of the content to its end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(content: impl Read) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(content)?;
        Ok(Self {
            blake3: hasher.finalize(),
            bytes: hasher.count(),
        })
    }
}

impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.blake3, self.bytes)
    }
}

/// A boot entry: its name and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Order, version, and tries.
    pub name: EntryName,
    /// The slot of its UKI.
    pub slot: Slot,
    /// The digest and size of its UKI.
    pub uki: FileDigest,
}

/// Why a file is not a boot entry.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotAnEntry {
    /// It names no UKI, so the loader has nothing to start.
    #[error("it has no line `efi /EFI/instar/SLOT.efi`")]
    NoUki,
    /// It lacks the digest of the UKI.
    #[error("it has no line `# blake3 DIGEST BYTES`")]
    NoDigest,
}

const DIGEST: &str = "# blake3 ";
const UKI: &str = "efi /";

impl Entry {
    /// The file's content. The line that makes it an entry comes last: half a file is no entry.
    ///
    /// The digest is in a comment, which the loader skips: it shows later readers of the partition whether a UKI is whole. Only Secure
    /// Boot's signatures decide what may be started.
    #[must_use]
    pub fn text(&self) -> String {
        let version = &self.name.version;
        format!(
            "title Instar {version}\nversion {version}\n{DIGEST}{}\n{UKI}{}\n",
            self.uki,
            self.slot.uki_path()
        )
    }

    /// Parses a file's content. Unknown keys are skipped, as by the loader.
    ///
    /// # Errors
    /// A required line is missing or incomplete.
    pub fn read(name: EntryName, text: &str) -> Result<Self, NotAnEntry> {
        let mut slot = None;
        let mut uki = None;
        // A line only counts with its newline.
        for line in text
            .split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'))
        {
            if let Some(path) = line.strip_prefix(UKI) {
                slot = Slot::from_uki_path(path);
            } else if let Some(words) = line.strip_prefix(DIGEST) {
                uki = read_digest(words);
            }
        }
        Ok(Self {
            name,
            slot: slot.ok_or(NotAnEntry::NoUki)?,
            uki: uki.ok_or(NotAnEntry::NoDigest)?,
        })
    }
}

fn read_digest(words: &str) -> Option<FileDigest> {
    let (blake3, bytes) = words.split_once(' ')?;
    Some(FileDigest {
        blake3: Hash::from_hex(blake3).ok()?,
        bytes: bytes.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry() -> Entry {
        Entry {
            name: "instar-7-v0.2.0+3.conf".parse().unwrap(),
            slot: Slot::from_letter('b').unwrap(),
            uki: FileDigest::of(b"uki"),
        }
    }

    #[test]
    fn an_entry_fits_into_a_sector_and_is_read_again() {
        let text = entry().text();
        assert_eq!(
            text,
            format!(
                "title Instar v0.2.0\nversion v0.2.0\n# blake3 {} 3\nefi /EFI/instar/b.efi\n",
                blake3::hash(b"uki")
            )
        );
        assert!(text.len() < 512);
        let read = FileDigest::read(&b"uki"[..]).unwrap();
        assert_eq!(read, entry().uki);
        assert_eq!(Entry::read(entry().name, &text), Ok(entry()));
    }

    #[test]
    fn no_part_of_an_entry_is_an_entry() {
        let text = entry().text();
        for end in 0..text.len() {
            Entry::read(entry().name, &text[..end]).unwrap_err();
        }
        let without = text.replace("# blake3", "# BLAKE3");
        assert_eq!(
            Entry::read(entry().name, &without),
            Err(NotAnEntry::NoDigest)
        );
    }
}
