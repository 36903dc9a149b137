//! A disk's content before the recording: its file, kept in memory without its holes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};

use crate::SECTOR;

/// Size of a chunk, bytes.
const CHUNK: u64 = 64 << 10;

/// A disk's content.
#[derive(Debug)]
pub(crate) struct Content {
    bytes: u64,
    /// Chunks by their first byte; missing ones are zero.
    chunks: BTreeMap<u64, Vec<u8>>,
}

impl Content {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut chunks = BTreeMap::new();
        let mut at = 0;
        while let Some(data) = next_data(&file, at)? {
            let start = data / CHUNK * CHUNK;
            let mut chunk = vec![0; CHUNK.min(bytes - start) as usize];
            file.read_exact_at(&mut chunk, start)?;
            if chunk.iter().any(|byte| *byte != 0) {
                chunks.insert(start, chunk);
            }
            at = start + CHUNK;
            if at >= bytes {
                break;
            }
        }
        Ok(Self { bytes, chunks })
    }

    /// The disk's size, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns one sector; `None` for one of zeros.
    pub(crate) fn sector(&self, sector: u64) -> Option<&[u8]> {
        let at = sector * SECTOR;
        let chunk = self.chunks.get(&(at / CHUNK * CHUNK))?;
        let within = (at % CHUNK) as usize;
        chunk.get(within..within + SECTOR as usize)
    }

    /// Returns the parts that are not zero between two bytes, with their offsets.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let first = start / CHUNK * CHUNK;
        self.chunks
            .range(first..end)
            .filter_map(move |(at, chunk)| {
                let from = start.max(*at);
                let to = end.min(at + chunk.len() as u64);
                let bytes = chunk.get((from - at) as usize..to.checked_sub(*at)? as usize)?;
                Some((from, bytes))
            })
    }

    /// Returns all parts that are not zero.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.within(0, self.bytes)
    }
}

/// Returns the next byte from `at` on that is not in a hole.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn holes_are_zeros_and_take_no_room() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(10 << 20).unwrap();
        file.as_file().write_all_at(&[7; 600], 5 << 20).unwrap();
        let content = Content::read(file.path()).unwrap();
        assert_eq!(content.bytes(), 10 << 20);
        assert_eq!(content.chunks.len(), 1);
        assert_eq!(content.sector(0), None);
        let first = (5 << 20) / SECTOR;
        assert_eq!(content.sector(first), Some([7; 512].as_slice()));
        assert_eq!(content.sector(first + 1).unwrap()[88], 0);
        let part: Vec<(u64, &[u8])> = content.within((5 << 20) + 512, (5 << 20) + 1024).collect();
        assert_eq!(part[0].0, (5 << 20) + 512);
        assert_eq!(part[0].1[..90], [[7; 88].as_slice(), &[0, 0]].concat());
        assert_eq!(content.within(6 << 20, 7 << 20).count(), 0);
    }
}
