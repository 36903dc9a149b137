//! The log of a disk's writes, as QEMU's blklogwrites makes it: the format of Linux's dm-log-writes.
//!
//! Little endian, in sectors: a superblock (magic, version, number of entries, size of a sector), then entries. Each has a
//! sector with its header (first sector of the disk, sectors, flags, bytes of a mark's text) and then its data.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::SECTOR;

const MAGIC: u64 = 0x6a_7366_7773_6872;
const VERSION: u64 = 1;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// An event of the log, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A write of sectors, or a discard, which makes them zero.
    Write(Write),
    /// A flush: all earlier writes are on the disk.
    Flush,
}

/// A write of sectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The first sector.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u64,
    /// The content.
    pub data: Data,
    /// Whether the write was on the disk when it ended (FUA), without a flush.
    pub durable: bool,
}

/// The content of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Zeros only.
    Zeros,
    /// These bytes.
    Bytes(Vec<u8>),
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LogError {
    #[error("cannot read the write log {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is no write log with sectors of 512 bytes", .0.display())]
    NotALog(PathBuf),
    /// QEMU lost entries: the writes after them are unknown.
    #[error("the write log {} has a hole at byte {at}, after {entries} entries: record again", path.display())]
    Hole {
        path: PathBuf,
        at: u64,
        entries: usize,
    },
}

/// A log of writes and flushes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteLog {
    /// The events.
    pub entries: Vec<Entry>,
    /// For each entry, its place in the file, bytes.
    positions: Vec<u64>,
}

impl WriteLog {
    /// Reads the log of a machine that has ended. The superblock counts only entries before the last flush, so the log
    /// is read to the file's end.
    ///
    /// # Errors
    /// The file cannot be read, is no log, or has a hole.
    pub fn read(path: &Path) -> Result<Self, LogError> {
        let failed = |source| LogError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let end = file.metadata().map_err(failed)?.len();
        let mut head = [0; SECTOR as usize];
        file.read_exact_at(&mut head, 0).map_err(failed)?;
        let is_log = u64_at(&head, 0) == MAGIC
            && u64_at(&head, 8) == VERSION
            && u64::from(u32_at(&head, 24)) == SECTOR;
        if !is_log {
            return Err(LogError::NotALog(path.to_owned()));
        }
        let counted = u64_at(&head, 16);

        let mut log = Self::default();
        let mut seen = 0;
        let mut at = SECTOR;
        while at < end {
            let hole = || LogError::Hole {
                path: path.to_owned(),
                at,
                entries: log.entries.len(),
            };
            file.read_exact_at(&mut head, at).map_err(|_| hole())?;
            let (sector, sectors) = (u64_at(&head, 0), u64_at(&head, 8));
            let (flags, text) = (u64_at(&head, 16), u64_at(&head, 24));
            let has_data = flags & (DISCARD | MARK) == 0 && sectors > 0;
            // Only a flush or a mark has no sectors.
            if flags & !(FLUSH | FUA | DISCARD | MARK) != 0
                || (sectors == 0 && flags & (FLUSH | MARK) == 0)
            {
                return Err(hole());
            }
            let bytes = if has_data {
                sectors.saturating_mul(SECTOR)
            } else {
                0
            };
            let data = at + SECTOR;
            if data.saturating_add(bytes) > end {
                return Err(hole());
            }
            // A write with the flag for a flush is a flush and then a write.
            if flags & FLUSH != 0 {
                log.push(Entry::Flush, at);
            }
            if flags & MARK == 0 && sectors > 0 {
                let data = match has_data {
                    true => read_data(&file, data, bytes).map_err(failed)?,
                    false => Data::Zeros,
                };
                let durable = flags & FUA != 0;
                let write = Write {
                    sector,
                    sectors,
                    data,
                    durable,
                };
                log.push(Entry::Write(write), at);
            }
            seen += 1;
            at = data + bytes + text.next_multiple_of(SECTOR);
        }
        if seen < counted {
            return Err(LogError::Hole {
                path: path.to_owned(),
                at,
                entries: log.entries.len(),
            });
        }
        Ok(log)
    }

    /// Returns a log of these entries without a file.
    #[must_use]
    pub fn of(entries: Vec<Entry>) -> Self {
        let positions = vec![0; entries.len()];
        Self { entries, positions }
    }

    /// Returns the number of entries that had happened when the log's file had this many bytes.
    #[must_use]
    pub fn entries_at(&self, bytes: u64) -> usize {
        self.positions.partition_point(|position| *position < bytes)
    }

    fn push(&mut self, entry: Entry, position: u64) {
        self.entries.push(entry);
        self.positions.push(position);
    }
}

/// Reads a write's data. Most zeros are holes in the log's file, and there may be more of them than memory.
fn read_data(file: &File, at: u64, bytes: u64) -> io::Result<Data> {
    const PIECE: u64 = 1 << 20;
    let mut read = Vec::new();
    let mut piece = Vec::new();
    let mut only_zeros = true;
    for start in (0..bytes).step_by(PIECE as usize) {
        let length = PIECE.min(bytes - start);
        piece.resize(length as usize, 0);
        file.read_exact_at(&mut piece, at + start)?;
        let is_zero = piece.iter().all(|byte| *byte == 0);
        if only_zeros && !is_zero {
            only_zeros = false;
            read.resize(start as usize, 0);
        }
        if !only_zeros {
            read.extend_from_slice(&piece);
        }
    }
    Ok(match only_zeros {
        true => Data::Zeros,
        false => Data::Bytes(read),
    })
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sector(words: &[u64]) -> Vec<u8> {
        let mut sector: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        sector.resize(512, 0);
        sector
    }

    fn log(parts: &[Vec<u8>]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), parts.concat()).unwrap();
        file
    }

    #[test]
    fn entries_are_read_in_order() {
        let file = log(&[
            sector(&[MAGIC, 1, 2, 512]),
            sector(&[7, 2, 0, 0]),
            vec![5; 1024],
            sector(&[0, 0, FLUSH, 0]),
            // Not counted yet when QEMU was killed.
            sector(&[9, 1, FUA, 0]),
            vec![0; 512],
            sector(&[100, 8, DISCARD, 0]),
            sector(&[0, 0, MARK, 3]),
            sector(&[]),
        ]);
        let write = |sector, sectors, data, durable| {
            Entry::Write(Write {
                sector,
                sectors,
                data,
                durable,
            })
        };
        let read = WriteLog::read(file.path()).unwrap();
        assert_eq!(
            read.entries,
            [
                write(7, 2, Data::Bytes(vec![5; 1024]), false),
                Entry::Flush,
                write(9, 1, Data::Zeros, true),
                write(100, 8, Data::Zeros, false),
            ]
        );
        let counted = [0, 512, 513, 2048, 2049, 9999].map(|bytes| read.entries_at(bytes));
        assert_eq!(counted, [0, 0, 1, 1, 2, 4]);
    }

    #[test]
    fn a_log_with_a_hole_is_refused() {
        let begin = sector(&[MAGIC, 1, 1, 512]);
        let holes = [
            // An entry that was never written.
            vec![begin.clone(), sector(&[]), sector(&[0, 0, FLUSH, 0])],
            // Data that is cut off.
            vec![begin.clone(), sector(&[7, 2, 0, 0]), vec![5; 512]],
            // Fewer entries than the superblock counts.
            vec![begin],
        ];
        for parts in holes {
            let error = WriteLog::read(log(&parts).path()).unwrap_err();
            assert!(matches!(error, LogError::Hole { .. }), "{error}");
        }
        let other = log(&[sector(&[1, 2, 3])]);
        assert!(matches!(
            WriteLog::read(other.path()),
            Err(LogError::NotALog(_))
        ));
    }
}
