//! The places of a sparse file's data: the maps of GNU tar, which writes the data of a sparse file without its holes.
//!
//! | form | where its map is |
//! | --- | --- |
//! | old GNU (type `S`) | in the header, and in blocks behind it |
//! | pax 0.0 | in pairs of `GNU.sparse.offset` and `GNU.sparse.numbytes` |
//! | pax 0.1 | in `GNU.sparse.map` |
//! | pax 1.0 | in front of the data, in blocks |
//!
//! Holes cost nothing on disk, but whoever reads the file reads them, as the seal of an image does: they count towards the limit on the
//! unpacked bytes.

use std::io::{self, Read};

use tar::{GnuExtSparseHeader, GnuHeader, GnuSparseHeader};

use super::archive::Archive;

/// Limit on pieces: more than a file of a real image has; each takes memory until the file is written.
const MOST_PIECES: usize = 64 * 1024;
/// Limit on the digits of a number in a map.
const MOST_DIGITS: usize = 20;

/// Pieces of data in ascending order, and the size of the file with its holes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SparseMap {
    /// Offset and length.
    pub(super) pieces: Vec<(u64, u64)>,
    pub(super) size: u64,
}

/// The pax records of a sparse file, still as text: they are checked once all are there.
#[derive(Debug, Default)]
pub(super) struct SparseRecords {
    pub(super) major: Option<Vec<u8>>,
    pub(super) minor: Option<Vec<u8>>,
    /// `GNU.sparse.size` or, from 1.0 on, `GNU.sparse.realsize`.
    pub(super) size: Option<Vec<u8>>,
    pub(super) number: Option<Vec<u8>>,
    /// Offsets and lengths in turn, separated by commas: from 0.1, or collected from the records of 0.0.
    pub(super) map: Option<Vec<u8>>,
}

impl SparseRecords {
    /// Adds a number of format 0.0, which has a record for each.
    pub(super) fn add_to_map(&mut self, number: &[u8]) {
        match &mut self.map {
            Some(map) => {
                map.push(b',');
                map.extend_from_slice(number);
            }
            None => self.map = Some(number.to_vec()),
        }
    }
}

/// Why a map is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SparseRefusal {
    /// The entry is a link or a directory.
    #[error("only a regular file can have holes")]
    NoFile,
    /// The version is neither 0.0, 0.1 nor 1.0.
    #[error("its version is not known")]
    Version,
    /// Numbers are missing, are text, or are not as many as announced.
    #[error("its map cannot be read")]
    Unreadable,
    /// The pieces overlap, descend, reach beyond the end of the file, or do not add up to the data in the archive.
    #[error("its map contradicts itself or the size of its data")]
    Contradictory,
    /// There are more pieces than the limit: a bomb.
    #[error("it has more than {MOST_PIECES} pieces")]
    TooMany,
}

impl SparseMap {
    /// A map whose pieces fit into the file and add up to the data.
    fn checked(pieces: Vec<(u64, u64)>, size: u64, data: u64) -> Result<Self, SparseRefusal> {
        let (mut end, mut sum) = (0_u64, 0_u64);
        for &(offset, length) in &pieces {
            let next = offset.checked_add(length);
            match next {
                Some(next) if offset >= end && next <= size => end = next,
                _ => return Err(SparseRefusal::Contradictory),
            }
            // The sum cannot overflow: the pieces do not overlap.
            sum += length;
        }
        if sum == data {
            Ok(SparseMap { pieces, size })
        } else {
            Err(SparseRefusal::Contradictory)
        }
    }

    /// Bytes of the file that are holes.
    pub(super) fn holes(&self) -> u64 {
        // All pieces are within the file, and none overlaps another.
        let data = self.pieces.iter().map(|&(_, length)| length).sum();
        self.size.saturating_sub(data)
    }

    /// The map in the header of an entry of type `S` and the blocks that follow it; `data` is the size of the data behind them.
    pub(super) fn of_old_header<R: Read>(
        header: &GnuHeader,
        archive: &mut Archive<R>,
        data: u64,
    ) -> io::Result<Result<Self, SparseRefusal>> {
        let mut pieces = Vec::new();
        let mut readable = take(&header.sparse, &mut pieces);
        let mut more = header.is_extended();
        while more {
            if pieces.len() > MOST_PIECES {
                return Ok(Err(SparseRefusal::TooMany));
            }
            let mut block = GnuExtSparseHeader::new();
            archive.block(block.as_mut_bytes())?;
            readable &= take(&block.sparse, &mut pieces);
            more = block.is_extended();
        }
        let size = header.real_size().ok().filter(|_| readable);
        Ok(size
            .ok_or(SparseRefusal::Unreadable)
            .and_then(|size| Self::checked(pieces, size, data)))
    }

    /// The map in pax records; `data` is the size of the entry's content, where the map of 1.0 is.
    pub(super) fn of_records(
        records: &SparseRecords,
        content: &mut impl Read,
        data: u64,
    ) -> io::Result<Result<Self, SparseRefusal>> {
        let version = (records.major.as_deref(), records.minor.as_deref());
        let in_front = match version {
            (Some(b"1"), Some(b"0")) => true,
            (Some(b"0"), Some(b"0" | b"1")) => false,
            (None, None) if records.map.is_some() => false,
            _ => return Ok(Err(SparseRefusal::Version)),
        };
        let Some(size) = records.size.as_deref().and_then(number) else {
            return Ok(Err(SparseRefusal::Unreadable));
        };
        if !in_front {
            let pieces = listed(records);
            return Ok(pieces.and_then(|pieces| Self::checked(pieces, size, data)));
        }
        Ok(match read_map(content)? {
            Ok((pieces, read)) => Self::checked(pieces, size, data.saturating_sub(read)),
            Err(refusal) => Err(refusal),
        })
    }
}

/// Adds the pieces of a header or block; `false` if a number is not valid.
fn take(headers: &[GnuSparseHeader], pieces: &mut Vec<(u64, u64)>) -> bool {
    headers
        .iter()
        .filter(|header| !header.is_empty())
        .all(|header| match (header.offset(), header.length()) {
            (Ok(offset), Ok(length)) => {
                pieces.push((offset, length));
                true
            }
            _ => false,
        })
}

/// The pieces of a map in pax records.
fn listed(records: &SparseRecords) -> Result<Vec<(u64, u64)>, SparseRefusal> {
    let map = records.map.as_deref().unwrap_or_default();
    let numbers: Option<Vec<u64>> = match map {
        b"" => Some(Vec::new()),
        map => map.split(|&byte| byte == b',').map(number).collect(),
    };
    let numbers = numbers.ok_or(SparseRefusal::Unreadable)?;
    let pieces: Vec<_> = numbers
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let announced = records.number.as_deref().map(number);
    let as_announced =
        announced.is_none_or(|announced| announced == u64::try_from(pieces.len()).ok());
    if numbers.len() % 2 != 0 || !as_announced {
        Err(SparseRefusal::Unreadable)
    } else if pieces.len() > MOST_PIECES {
        Err(SparseRefusal::TooMany)
    } else {
        Ok(pieces)
    }
}

/// The pieces of a map in front of the data, and the number of bytes that it took.
type ReadMap = (Vec<(u64, u64)>, u64);

/// Reads a map of 1.0: the number of pieces, then offset and length of each, a line for each number, padded to a block.
fn read_map(content: &mut impl Read) -> io::Result<Result<ReadMap, SparseRefusal>> {
    let mut block = [0; 512];
    let mut read = 0;
    let mut digits = Vec::new();
    let mut announced = None;
    let mut numbers = Vec::new();
    loop {
        content.read_exact(&mut block)?;
        read += block.len() as u64;
        for &byte in &block {
            if byte != b'\n' {
                digits.push(byte);
                if digits.len() > MOST_DIGITS {
                    return Ok(Err(SparseRefusal::Unreadable));
                }
                continue;
            }
            let Some(number) = number(&digits) else {
                return Ok(Err(SparseRefusal::Unreadable));
            };
            digits.clear();
            match announced {
                None if number > MOST_PIECES as u64 => return Ok(Err(SparseRefusal::TooMany)),
                None => announced = Some(number),
                Some(_) => numbers.push(number),
            }
            if announced.is_some_and(|pieces| numbers.len() as u64 == pieces * 2) {
                let pieces = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1]));
                return Ok(Ok((pieces.collect(), read)));
            }
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    // Unlike `parse`, a map allows no sign.
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| plain)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn in_front(map: &str, size: &str, data: u64) -> Result<SparseMap, SparseRefusal> {
        let records = SparseRecords {
            major: Some(b"1".to_vec()),
            minor: Some(b"0".to_vec()),
            size: Some(size.into()),
            ..SparseRecords::default()
        };
        let mut content = map.as_bytes().to_vec();
        content.resize(content.len().next_multiple_of(512), 0);
        let data = data + content.len() as u64;
        SparseMap::of_records(&records, &mut content.as_slice(), data).unwrap()
    }

    fn in_records(
        map: &str,
        number: &str,
        size: &str,
        data: u64,
    ) -> Result<SparseMap, SparseRefusal> {
        let records = SparseRecords {
            size: Some(size.into()),
            number: Some(number.into()),
            map: Some(map.into()),
            ..SparseRecords::default()
        };
        SparseMap::of_records(&records, &mut io::empty(), data).unwrap()
    }

    #[test]
    fn both_kinds_of_maps_say_the_same() {
        let map = Ok(SparseMap {
            pieces: vec![(0, 5), (4096, 7), (10_000, 0)],
            size: 10_000,
        });
        assert_eq!(in_front("3\n0\n5\n4096\n7\n10000\n0\n", "10000", 12), map);
        assert_eq!(in_records("0,5,4096,7,10000,0", "3", "10000", 12), map);
        let hole = Ok(SparseMap {
            pieces: Vec::new(),
            size: 9,
        });
        assert_eq!(in_front("0\n", "9", 0), hole);
        assert_eq!(in_records("", "0", "9", 0), hole);
    }

    #[test]
    fn a_map_may_need_many_blocks() {
        let pieces: Vec<_> = (0..1000).map(|number| (number * 10, 1)).collect();
        let lines: String = pieces
            .iter()
            .map(|(offset, length)| format!("{offset}\n{length}\n"))
            .collect();
        let map = in_front(&format!("1000\n{lines}"), "10000", 1000).unwrap();
        assert_eq!(map.pieces, pieces);
    }

    #[test]
    fn maps_that_lie_are_refused() {
        use SparseRefusal::{Contradictory, TooMany, Unreadable, Version};
        for (map, size, data, expected) in [
            ("2\n0\n5\n4\n5\n", "100", 10, Contradictory),
            ("2\n50\n5\n0\n5\n", "100", 10, Contradictory),
            ("1\n96\n5\n", "100", 5, Contradictory),
            ("1\n18446744073709551615\n5\n", "100", 5, Contradictory),
            ("1\n0\n5\n", "100", 6, Contradictory),
            ("1\n-1\n5\n", "100", 5, Unreadable),
            ("1\n\n5\n", "100", 5, Unreadable),
            ("1\n000000000000000000000\n5\n", "100", 5, Unreadable),
            ("99999999999999999999\n", "100", 5, Unreadable),
            ("70000\n", "100", 5, TooMany),
            ("1\n0\n5\n", "many", 5, Unreadable),
        ] {
            assert_eq!(in_front(map, size, data), Err(expected), "{map:?}");
        }
        for (map, number, expected) in [
            ("0,5,7", "1", Unreadable),
            ("0,5", "2", Unreadable),
            ("0;5", "1", Unreadable),
            ("0,+5", "1", Unreadable),
            ("10,5,0,1", "2", Contradictory),
        ] {
            assert_eq!(in_records(map, number, "100", 5), Err(expected), "{map:?}");
        }
        let future = SparseRecords {
            major: Some(b"2".to_vec()),
            ..SparseRecords::default()
        };
        let refused = SparseMap::of_records(&future, &mut io::empty(), 0).unwrap();
        assert_eq!(refused, Err(Version));
        // The content ends within the map.
        let cut = SparseRecords {
            major: Some(b"1".to_vec()),
            minor: Some(b"0".to_vec()),
            size: Some(b"9".to_vec()),
            ..SparseRecords::default()
        };
        assert!(SparseMap::of_records(&cut, &mut &b"1\n0\n"[..], 4).is_err());
    }
}
