//! Whether a file is a whole snapshot of etcd.
//!
//! ```text
//! page 0, page 1    the two heads of the database: mark, size of a page, number of pages, number of the change, checksum
//! page 2 …          the data
//! 32 bytes          SHA-256 of all before, which etcd adds to a snapshot; a file of a data directory lacks it
//! ```
//!
//! etcd's database is a file of bbolt (github.com/etcd-io/bbolt), in the byte order of the machine that wrote it. Only its heads are read here:
//! they tell a file that ends early from one that was altered, also where nobody has a digest.

use std::io::{self, Read, Seek, SeekFrom};

use crate::base::byte_size::human_short;
use crate::values::digest::{Digest, Hasher};

/// Bytes of a SHA-256.
const DIGEST: u64 = 32;
/// Pages are a multiple of this, so what is left of a division by it says whether a digest follows. etcd looks at the same.
const SECTOR: u64 = 512;
/// The mark of a database, and the version of its format.
const MARK: u32 = 0xED0C_DAED;
const FORMAT: u32 = 2;
/// Bytes in a page before its head, of the head, and of the head before its checksum.
const BEFORE_HEAD: u64 = 16;
const HEAD: usize = 64;
const CHECKED: usize = 56;
/// Sizes of pages that a database may have: those of the kernels that wrote it.
const PAGES: std::ops::RangeInclusive<u32> = 512..=1 << 16;
/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// Why a file is no snapshot that can be restored.
#[derive(Debug, thiserror::Error)]
pub enum NotASnapshot {
    /// It is another kind of file, or its beginning is damaged.
    #[error(
        "it is no database of etcd, or its beginning is damaged: take the file that `etcd snapshot` has written"
    )]
    OtherFile,
    /// Bytes are missing.
    #[error(
        "it is truncated: its database has {}, and {} are here; copy the file again",
        human_short(*whole),
        human_short(*here)
    )]
    Truncated {
        /// Bytes of the database.
        whole: u64,
        /// Bytes that are here.
        here: u64,
    },
    /// It has no digest.
    #[error(
        "it has no SHA-256 at its end, as a snapshot has: it is truncated, or it is the file of a data directory, which is restored without \
         the check (--recover-skip-hash-check)"
    )]
    NoDigest,
    /// Its bytes are others than those that etcd wrote.
    #[error(
        "it was altered or damaged: its end says {said} of a database with {found}; take another copy, or another snapshot"
    )]
    Altered {
        /// The digest at its end.
        said: Digest,
        /// That of its bytes.
        found: Digest,
    },
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// Checks a file; without `with_digest` only that it is a database with all of its pages. Returns the size of its database in bytes. Blocks.
///
/// # Errors
/// It is no whole snapshot, or cannot be read.
pub fn check(file: &mut (impl Read + Seek), with_digest: bool) -> Result<u64, NotASnapshot> {
    let length = file.seek(SeekFrom::End(0))?;
    let has_digest = length % SECTOR == DIGEST;
    let here = if has_digest { length - DIGEST } else { length };
    let whole = size_by_heads(file, length)?;
    if here < whole {
        return Err(NotASnapshot::Truncated { whole, here });
    }
    if !with_digest {
        return Ok(here);
    }
    if !has_digest {
        return Err(NotASnapshot::NoDigest);
    }
    file.seek(SeekFrom::Start(0))?;
    let found = digest_of(&mut file.by_ref().take(here))?;
    let mut said = [0; DIGEST as usize];
    file.read_exact(&mut said)?;
    let said = Digest::from_bytes(said);
    match said == found {
        true => Ok(here),
        false => Err(NotASnapshot::Altered { said, found }),
    }
}

fn digest_of(file: &mut impl Read) -> io::Result<Digest> {
    let (mut hasher, mut piece) = (Hasher::default(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            read => hasher.update(&piece[..read]),
        }
    }
}

/// Returns the size that the newer one of the two heads says.
fn size_by_heads(file: &mut (impl Read + Seek), length: u64) -> Result<u64, NotASnapshot> {
    let first = head(file, 0, length)?;
    // The second page begins where the first one says; if that is damaged, where most kernels have it.
    let page = first.as_ref().map_or(4096, |head| head.page);
    let second = head(file, page, length)?;
    let heads = [first, second].into_iter().flatten();
    let newest = heads.max_by_key(|head| head.change);
    let newest = newest.ok_or(NotASnapshot::OtherFile)?;
    Ok(newest.page.saturating_mul(newest.pages))
}

/// The fields of a page's head.
struct Head {
    /// Bytes of a page.
    page: u64,
    /// Number of pages.
    pages: u64,
    /// The number of the change that wrote it.
    change: u64,
}

/// Reads the head of the page at an offset; `None` if there is none, or a damaged one.
fn head(file: &mut (impl Read + Seek), at: u64, length: u64) -> io::Result<Option<Head>> {
    let begin = at + BEFORE_HEAD;
    if begin + HEAD as u64 > length {
        return Ok(None);
    }
    let mut bytes = [0; HEAD];
    file.seek(SeekFrom::Start(begin))?;
    file.read_exact(&mut bytes)?;
    Ok(Head::read(&bytes))
}

impl Head {
    fn read(bytes: &[u8; HEAD]) -> Option<Self> {
        let page = number_of_4(bytes, 8)?;
        let is_right = number_of_4(bytes, 0)? == MARK
            && number_of_4(bytes, 4)? == FORMAT
            && PAGES.contains(&page)
            && number_of_8(bytes, CHECKED)? == checksum(&bytes[..CHECKED]);
        is_right.then_some(Head {
            page: page.into(),
            pages: number_of_8(bytes, 40)?,
            change: number_of_8(bytes, 48)?,
        })
    }
}

fn number_of_4(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}

fn number_of_8(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// FNV-1a with 64 bits, the checksum of a head.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, step)
}

/// A snapshot with a database of five pages, whose heads differ by their change.
#[cfg(any(test, feature = "fuzzing"))]
pub fn smallest() -> Vec<u8> {
    let mut bytes = vec![7; 5 * 4096];
    for (page, change) in [(0, 10_u64), (1, 11)] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&MARK.to_le_bytes());
        head[4..8].copy_from_slice(&FORMAT.to_le_bytes());
        head[8..12].copy_from_slice(&4096_u32.to_le_bytes());
        head[40..48].copy_from_slice(&5_u64.to_le_bytes());
        head[48..56].copy_from_slice(&change.to_le_bytes());
        let sum = checksum(&head[..CHECKED]);
        head[CHECKED..].copy_from_slice(&sum.to_le_bytes());
        let at = page * 4096 + BEFORE_HEAD as usize;
        bytes[at..at + HEAD].copy_from_slice(&head);
    }
    let digest = *Digest::of(&bytes).bytes();
    bytes.extend(digest);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Cursor;

    use super::*;

    fn snapshot() -> Vec<u8> {
        smallest()
    }

    fn database() -> Vec<u8> {
        let mut bytes = smallest();
        bytes.truncate(5 * 4096);
        bytes
    }

    fn said(bytes: Vec<u8>, with_digest: bool) -> Result<u64, String> {
        let checked = check(&mut Cursor::new(bytes), with_digest);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_snapshot_is_taken() {
        assert_eq!(said(snapshot(), true), Ok(5 * 4096));
        assert_eq!(said(snapshot(), false), Ok(5 * 4096));
        // The file of a data directory has more pages than it needs, and no digest.
        let mut file = database();
        file.extend(vec![0; 3 * 4096]);
        assert_eq!(said(file, false), Ok(8 * 4096));
    }

    #[test]
    fn every_other_file_is_refused_with_the_reason() {
        let cut = |bytes: usize| snapshot()[..bytes].to_vec();
        let flipped = |at: usize| {
            let mut bytes = snapshot();
            bytes[at] ^= 1;
            bytes
        };
        let table = [
            (Vec::new(), true, "no database of etcd"),
            (b"hello".to_vec(), true, "no database of etcd"),
            (vec![0; 5 * 4096 + 32], true, "no database of etcd"),
            (cut(5 * 4096 + 31), true, "no SHA-256"),
            (cut(5 * 4096), true, "no SHA-256"),
            (cut(5 * 4096 - 1), true, "truncated"),
            (cut(3 * 4096 + 32), true, "truncated"),
            (cut(3 * 4096), false, "truncated"),
            (flipped(3 * 4096), true, "altered"),
            (flipped(5 * 4096), true, "altered"),
            // One head is enough to see that all pages are here, and the digest sees the other one.
            (flipped(20), true, "altered"),
            (flipped(4096 + 20), true, "altered"),
        ];
        for (bytes, with_digest, reason) in table {
            let length = bytes.len();
            let refused = said(bytes, with_digest).unwrap_err();
            assert!(refused.contains(reason), "{length}: {refused}");
        }
        assert_eq!(said(flipped(3 * 4096), false), Ok(5 * 4096));
    }

    #[test]
    fn a_head_with_another_checksum_counts_for_nothing() {
        let mut bytes = database();
        // Both heads say another number of pages.
        for at in [16 + 40, 4096 + 16 + 40] {
            bytes[at] = 3;
        }
        let refused = said(bytes, false).unwrap_err();
        assert!(refused.contains("no database of etcd"), "{refused}");
    }
}
