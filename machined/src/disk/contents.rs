//! The contents of a partition of ours before it is mounted, and whether it may be given a new filesystem.
//!
//! A filesystem is made in two cases only: the partition is blank, or it carries the mark "to be made anew". The mark is written before
//! mkfs and before a wipe, and is removed when the new filesystem is complete, so that a power cut in between leaves nothing in doubt.
//! It lies in the last bytes of the partition, which the filesystem leaves out.

use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
    path::Path,
};

use super::{
    probe::{END, ProbeError, Signature, is_zero, signature},
    table::read_at,
};

/// Bytes at the end of a partition that its filesystem leaves out: one sector of any disk.
pub(super) const TAIL: u64 = 4096;

/// The beginning of the mark; the rest of its sector is zero.
const MARK: &[u8] = b"INSTAR: THIS PARTITION IS TO BE MADE ANEW\n";
/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// Places of ext4's superblock copies: block size, blocks in a group, first block (ext4(5)). mkfs takes small blocks for small partitions.
const GEOMETRIES: [(u64, u64, u64); 2] = [(1024, 8192, 1), (4096, 32768, 0)];
/// Groups with a copy. Higher powers of 3, 5 and 7 have one too, but are not read.
const GROUPS: [u16; 5] = [1, 3, 5, 7, 9];

/// The contents of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contents {
    /// A filesystem with its superblock. `marked`: the mark is still there, and only its removal is missing.
    Filesystem { marked: bool },
    /// Nothing that has to be kept.
    Free,
    /// The data of another system or program.
    Foreign(Signature),
    /// Data, but no superblock in its place; with the copies of ext4's superblock that are left.
    Damaged(Vec<Backup>),
}

/// A copy of ext4's superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backup {
    /// The block, counted from the partition's beginning.
    pub(super) block: u64,
    /// Block size in bytes.
    pub(super) block_size: u64,
}

/// Reads the parts of a partition that show whether it may be given a new filesystem.
pub(super) fn examine(path: &Path) -> Result<Contents, ProbeError> {
    let failed = |source| ProbeError::of(path, source);
    let mut file = File::open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let head = read_at(&mut file, 0, END.min(size)).map_err(failed)?;
    let tail = read_at(&mut file, size.saturating_sub(TAIL), TAIL).map_err(failed)?;
    let marked = is_mark(&tail);
    let is_kept = match signature(&head, &[]) {
        Some(Signature::Ext) => return Ok(Contents::Filesystem { marked }),
        // We wrote the mark before making a filesystem: the older data was given up then.
        _ if marked => return Ok(Contents::Free),
        Some(other) => return Ok(Contents::Foreign(other)),
        None => !is_zero(&head),
    };
    let backups = backups(&mut file, size).map_err(failed)?;
    Ok(match is_kept || !backups.is_empty() {
        true => Contents::Damaged(backups),
        false => Contents::Free,
    })
}

fn backups(file: &mut File, size: u64) -> io::Result<Vec<Backup>> {
    let mut found = Vec::new();
    for (block_size, blocks, first) in GEOMETRIES {
        for group in GROUPS {
            let block = first + blocks * u64::from(group);
            let at = block * block_size;
            if at + block_size > size {
                break;
            }
            if is_copy(&read_at(file, at, 1024)?, block_size, group) {
                found.push(Backup { block, block_size });
            }
        }
    }
    Ok(found)
}

/// Returns whether this is a superblock for this block size and group: by the magic number, log2 of the blocks' KiB, and the
/// group's number.
fn is_copy(superblock: &[u8], block_size: u64, group: u16) -> bool {
    let log: u32 = if block_size == 1024 { 0 } else { 2 };
    let is = |at: usize, bytes: &[u8]| superblock.get(at..at + bytes.len()) == Some(bytes);
    is(0x38, &[0x53, 0xEF]) && is(0x18, &log.to_le_bytes()) && is(0x5A, &group.to_le_bytes())
}

fn is_mark(tail: &[u8]) -> bool {
    tail.starts_with(MARK)
}

/// Marks the partition that ends at this byte of the device: its contents need not be kept. The caller flushes.
pub(super) fn mark(device: &File, end: u64) -> io::Result<()> {
    let mut sector = [0; SECTOR];
    sector[..MARK.len()].copy_from_slice(MARK);
    device.write_all_at(&sector, end.saturating_sub(TAIL))
}

/// Removes the mark. The caller flushes.
pub(super) fn unmark(device: &File, end: u64) -> io::Result<()> {
    device.write_all_at(&[0; SECTOR], end.saturating_sub(TAIL))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::Command;

    use super::*;

    /// Makes a file of that many MiB with a filesystem as the node makes it, and writes to the filesystem.
    fn filesystem(mebibytes: u64) -> (tempfile::NamedTempFile, u64) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = mebibytes << 20;
        file.as_file().set_len(size).unwrap();
        let kibibytes = format!("{}k", (size - TAIL) / 1024);
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,nodiscard"])
            .arg(file.path())
            .arg(kibibytes)
            .status();
        assert!(made.unwrap().success());
        (file, size)
    }

    fn zero(file: &tempfile::NamedTempFile, at: u64, length: usize) {
        file.as_file().write_all_at(&vec![0; length], at).unwrap();
    }

    #[test]
    fn a_filesystem_without_its_superblock_is_not_free() {
        for (mebibytes, first) in [(24, 8193), (600, 32768)] {
            let (file, _) = filesystem(mebibytes);
            let examined = || examine(file.path()).unwrap();
            assert_eq!(examined(), Contents::Filesystem { marked: false });
            zero(&file, 0, 4096);
            let Contents::Damaged(backups) = examined() else {
                unreachable!("{:?}", examined())
            };
            assert_eq!(backups[0].block, first);
            // A partition whose first MiB is gone is not free either.
            zero(&file, 0, 1 << 20);
            assert_eq!(examined(), Contents::Damaged(backups));
        }
    }

    #[test]
    fn what_nobody_knows_is_not_free() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(24 << 20).unwrap();
        assert_eq!(examine(file.path()).unwrap(), Contents::Free);
        file.as_file().write_all_at(b"x", 70_000).unwrap();
        let unknown = Contents::Damaged(Vec::new());
        assert_eq!(examine(file.path()).unwrap(), unknown);
        file.as_file().write_all_at(b"XFSB", 0).unwrap();
        let foreign = Contents::Foreign(Signature::Xfs);
        assert_eq!(examine(file.path()).unwrap(), foreign);
    }

    #[test]
    fn what_is_marked_is_free_until_its_filesystem_is_whole() {
        let (file, size) = filesystem(24);
        mark(file.as_file(), size).unwrap();
        let examined = || examine(file.path()).unwrap();
        assert_eq!(examined(), Contents::Filesystem { marked: true });
        zero(&file, 1024, 1024);
        assert_eq!(examined(), Contents::Free);
        unmark(file.as_file(), size).unwrap();
        assert!(matches!(examined(), Contents::Damaged(_)));
    }
}
