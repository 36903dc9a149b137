//! What a boot entry says: a Type #1 entry of the Boot Loader Specification.

use std::fmt;

use blake3::Hash;
use thiserror::Error;

use crate::{name::EntryName, slot::Slot};

/// What a file must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// BLAKE3 of its content.
    pub blake3: Hash,
    /// Its size.
    pub bytes: u64,
}

impl FileDigest {
    /// Of this content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self {
            blake3: blake3::hash(content),
            bytes: content.len() as u64,
        }
    }
}

impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.blake3, self.bytes)
    }
}

/// A boot entry: its name and what the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Order, version, and tries.
    pub name: EntryName,
    /// Where its UKI is.
    pub slot: Slot,
    /// What its UKI is.
    pub uki: FileDigest,
}

/// Why a file's content is not that of an entry.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotAnEntry {
    /// The loader finds nothing to start in it.
    #[error("it has no line `efi /EFI/instar/SLOT.efi`")]
    NoUki,
    /// It does not say what the UKI must be.
    #[error("it has no line `# blake3 DIGEST BYTES`")]
    NoDigest,
}

const DIGEST: &str = "# blake3 ";
const UKI: &str = "efi /";

impl Entry {
    /// The file's content. The line that makes it an entry is the last one: half of a file is none.
    ///
    /// The digest is in a comment, which the loader skips: it tells whoever reads the partition later whether a UKI is whole.
    /// What may be started is said by Secure Boot's signatures alone.
    #[must_use]
    pub fn text(&self) -> String {
        let version = &self.name.version;
        format!(
            "title Instar {version}\nversion {version}\n{DIGEST}{}\n{UKI}{}\n",
            self.uki,
            self.slot.uki_path()
        )
    }

    /// Reads a file's content. Keys that are not ours are skipped, as the loader does.
    ///
    /// # Errors
    /// A line that it needs is missing or is not whole.
    pub fn read(name: EntryName, text: &str) -> Result<Self, NotAnEntry> {
        let mut slot = None;
        let mut uki = None;
        // A line counts when its end was written too.
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
