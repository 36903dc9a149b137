//! Reads a GPT, as the UEFI specification (2.10, chapter 5) lays it out.
//!
//! This is own code, because the gpt crate does not compare the checksum of the entries: it accepts a header whose entries were never
//! written, which is the result of a power cut. A table may come from any system, so every number in it is checked before it is used.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt as _,
};

use uuid::Uuid;

/// The first bytes of a header.
pub(super) const MAGIC: &[u8] = b"EFI PART";
/// Bytes of an entry. The specification allows more, but no partitioning program makes larger ones.
const ENTRY: usize = 128;
/// Limit on the entries. Partitioning programs make 128; a header with more than this is no table.
const MOST_ENTRIES: u32 = 1024;

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The disk's own GUID.
    pub guid: Uuid,
    /// Its partitions by number.
    pub partitions: Vec<Partition>,
    /// True if the two copies are not both whole, equal and in their places, or if the protective MBR is missing.
    pub needs_repair: bool,
}

/// An entry of a partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1.
    pub number: u32,
    /// Its name.
    pub label: String,
    /// Its type.
    pub kind: Uuid,
    /// Its own GUID.
    pub guid: Uuid,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// Reads the table of a disk of `size` bytes; none if neither copy is whole. The primary copy counts if both are.
pub(super) fn read(file: &mut File, size: u64, sector: u64) -> io::Result<Option<Table>> {
    let last = (size / sector).saturating_sub(1);
    let primary = WholeCopy::read(file, size, 1, sector)?;
    let backup = WholeCopy::read(file, size, last, sector)?;
    let same = primary
        .as_ref()
        .zip(backup.as_ref())
        .is_some_and(|(one, other)| {
            one.fields.guid == other.fields.guid
                && one.partitions() == other.partitions()
                && one.fields.other_lba == last
        });
    let needs_repair = !same || !has_protective_mbr(&read_at(file, 0, 512)?);
    Ok(primary.or(backup).map(|copy| Table {
        guid: copy.fields.guid,
        partitions: copy.partitions(),
        needs_repair,
    }))
}

/// Returns the whole copies in the order in which to change them: with a flush after each, one of them can be read at every moment.
pub(super) fn whole_copies(file: &mut File, size: u64, sector: u64) -> io::Result<Vec<WholeCopy>> {
    let primary = WholeCopy::read(file, size, 1, sector)?;
    // On a disk that has grown, the backup copy is where the disk ended before.
    let other = match &primary {
        Some(primary) => primary.fields.other_lba,
        None => (size / sector).saturating_sub(1),
    };
    let backup = WholeCopy::read(file, size, other, sector)?;
    Ok(backup.into_iter().chain(primary).collect())
}

/// A copy of the table as it is on the disk, with matching checksums.
pub(super) struct WholeCopy {
    fields: Header,
    header: Vec<u8>,
    /// Offset of its entries, in bytes.
    offset: u64,
    entries: Vec<u8>,
    lba: u64,
    sector: u64,
}

impl WholeCopy {
    /// Reads the copy whose header is in this sector; none if a checksum or a number is wrong.
    fn read(file: &mut File, size: u64, lba: u64, sector: u64) -> io::Result<Option<Self>> {
        let Some(at) = lba.checked_mul(sector).filter(|at| *at < size) else {
            return Ok(None);
        };
        let header = read_at(file, at, sector)?;
        let Some(fields) = Header::parse(&header, lba) else {
            return Ok(None);
        };
        let length = u64::from(fields.entries) * ENTRY as u64;
        // A read beyond the end of the disk would be an error.
        let offset = fields.entries_lba.checked_mul(sector);
        let Some(offset) = offset.filter(|offset| *offset < size) else {
            return Ok(None);
        };
        let entries = read_at(file, offset, length)?;
        if entries.len() as u64 != length || crc32(&entries) != fields.entries_crc {
            return Ok(None);
        }
        Ok(Some(Self {
            fields,
            header,
            offset,
            entries,
            lba,
            sector,
        }))
    }

    fn partitions(&self) -> Vec<Partition> {
        (1..)
            .zip(self.entries.chunks_exact(ENTRY))
            .filter_map(|(number, entry)| partition(number, entry, self.sector))
            .collect()
    }

    /// Returns whether it has a partition of this number.
    pub(super) fn has(&self, number: u32) -> bool {
        self.partitions().iter().any(|it| it.number == number)
    }

    /// Removes a partition. All others keep their numbers, names and flags.
    pub(super) fn remove(&mut self, number: u32) {
        let index = number
            .checked_sub(1)
            .and_then(|it| usize::try_from(it).ok());
        let entry = index.and_then(|index| self.entries.chunks_exact_mut(ENTRY).nth(index));
        if let Some(entry) = entry {
            entry.fill(0);
        }
        put_u32(&mut self.header, ENTRIES_CRC, crc32(&self.entries));
        put_u32(&mut self.header, HEADER_CRC, 0);
        let checksum = crc32(&self.header[..self.fields.length]);
        put_u32(&mut self.header, HEADER_CRC, checksum);
    }

    /// Writes the copy to its place.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.entries, self.offset)?;
        file.write_all_at(&self.header, self.lba * self.sector)?;
        file.sync_all()
    }
}

/// Offsets of the two checksums in a header: the header's own, and that of the entries.
const HEADER_CRC: usize = 16;
const ENTRIES_CRC: usize = 88;

struct Header {
    /// Length of the header in bytes, as far as its checksum covers it.
    length: usize,
    guid: Uuid,
    other_lba: u64,
    entries_lba: u64,
    entries: u32,
    entries_crc: u32,
}

impl Header {
    fn parse(bytes: &[u8], lba: u64) -> Option<Self> {
        let length = usize::try_from(u32_at(bytes, 12)?).ok()?;
        let header = bytes
            .get(..length)
            .filter(|_| length >= 92 && bytes.starts_with(MAGIC))?;
        let mut unsigned = header.to_vec();
        put_u32(&mut unsigned, HEADER_CRC, 0);
        let is_whole = crc32(&unsigned) == u32_at(header, HEADER_CRC)?
            && u64_at(header, 24)? == lba
            && u32_at(header, 84)? == ENTRY as u32
            && u32_at(header, 80)? <= MOST_ENTRIES;
        is_whole.then_some(Self {
            length,
            guid: guid_at(header, 56)?,
            other_lba: u64_at(header, 32)?,
            entries_lba: u64_at(header, 72)?,
            entries: u32_at(header, 80)?,
            entries_crc: u32_at(header, ENTRIES_CRC)?,
        })
    }
}

/// Parses an entry: type GUID, own GUID, first and last sector, flags, then 36 UTF-16 units of name; none for an unused entry.
fn partition(number: u32, entry: &[u8], sector: u64) -> Option<Partition> {
    let kind = guid_at(entry, 0).filter(|kind| !kind.is_nil())?;
    let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
    Some(Partition {
        number,
        label: label(entry),
        kind,
        guid: guid_at(entry, 16)?,
        start: first.saturating_mul(sector),
        length: last
            .saturating_add(1)
            .saturating_sub(first)
            .saturating_mul(sector),
    })
}

/// Returns the name in an entry.
pub(super) fn label(entry: &[u8]) -> String {
    let name = entry.get(56..ENTRY).unwrap_or_default();
    let units = name
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16_lossy(&units)
}

/// Returns whether the first sector says that the disk has a GPT: without that the kernel does not look for one.
pub(super) fn has_protective_mbr(sector: &[u8]) -> bool {
    let kinds = [450, 466, 482, 498];
    sector.get(510..512) == Some(&[0x55, 0xAA])
        && kinds.iter().any(|at| sector.get(*at) == Some(&0xEE))
}

/// Reads at most `length` bytes from `offset`; fewer at the end of the device.
pub(super) fn read_at(file: &mut File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Writes a field, which must lie within `bytes`.
fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn guid_at(bytes: &[u8], at: usize) -> Option<Uuid> {
    Some(Uuid::from_bytes_le(
        bytes.get(at..at + 16)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Makes a header in sector 1 with these fields and matching checksums.
    fn header(entries_lba: u64, count: u32, entry_size: u32, entries: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 512];
        header[..8].copy_from_slice(MAGIC);
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&1_u64.to_le_bytes());
        header[72..80].copy_from_slice(&entries_lba.to_le_bytes());
        header[80..84].copy_from_slice(&count.to_le_bytes());
        header[84..88].copy_from_slice(&entry_size.to_le_bytes());
        header[88..92].copy_from_slice(&crc32(entries).to_le_bytes());
        let crc = crc32(&header[..92]);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        header
    }

    fn read_disk(header: &[u8], entries: &[u8]) -> Option<Table> {
        use std::os::unix::fs::FileExt;
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(header, 512).unwrap();
        file.write_all_at(entries, 1024).unwrap();
        read(&mut file, 1 << 20, 512).unwrap()
    }

    #[test]
    fn hostile_headers_are_no_tables() {
        let entries = vec![0; 128 * 4];
        let good = header(2, 4, 128, &entries);
        assert!(read_disk(&good, &entries).unwrap().partitions.is_empty());
        let mut torn = good.clone();
        torn[40] ^= 1;
        let mut long = good.clone();
        long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut short = good.clone();
        short[12..16].copy_from_slice(&20_u32.to_le_bytes());
        for bad in [
            torn,
            long,
            short,
            header(2, u32::MAX, 128, &entries),
            header(2, 4, 0, &entries),
            header(u64::MAX, 4, 128, &entries),
            header(1 << 40, 4, 128, &entries),
        ] {
            assert_eq!(read_disk(&bad, &entries), None);
        }
        let mut other = entries.clone();
        other[0] = 1;
        assert_eq!(read_disk(&good, &other), None, "entries of another table");
    }

    fn sgdisk(arguments: &[&str], disk: &std::path::Path) -> String {
        let output = std::process::Command::new("sgdisk")
            .args(arguments)
            .arg(disk)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }

    #[test]
    fn one_partition_goes_and_the_others_stay_as_they_are() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        let size = 64 << 20;
        disk.as_file().set_len(size).unwrap();
        let made = [
            "-n1:0:+8M",
            "-n2:0:+8M",
            "-n3:0:+8M",
            "-c3:kept",
            "-A3:set:2",
        ];
        sgdisk(&made, disk.path());
        let third = sgdisk(&["-i3"], disk.path());
        let copies = |file: &mut File| whole_copies(file, size, 512).unwrap();
        let mut file = disk.reopen().unwrap();
        for mut copy in copies(&mut file) {
            assert!(copy.has(2) && !copy.has(4));
            copy.remove(2);
            copy.write(&file).unwrap();
            // The other copy is still unchanged, so the table can be read.
            assert!(read(&mut file, size, 512).unwrap().is_some());
        }
        assert_eq!(copies(&mut file).len(), 2);
        let said = sgdisk(&["--verify"], disk.path());
        assert!(said.contains("No problems found"), "{said}");
        assert_eq!(sgdisk(&["-i3"], disk.path()), third);
        let table = read(&mut file, size, 512).unwrap().unwrap();
        let numbers: Vec<u32> = table.partitions.iter().map(|it| it.number).collect();
        assert_eq!((numbers, table.needs_repair), (vec![1, 3], false));

        // A disk that has grown has its second copy where it ended before.
        file.set_len(2 * size).unwrap();
        assert_eq!(whole_copies(&mut file, 2 * size, 512).unwrap().len(), 2);
        file.write_all_at(&[0; 512], 512).unwrap();
        assert!(whole_copies(&mut file, 2 * size, 512).unwrap().is_empty());
        assert_eq!(copies(&mut file).len(), 1);
    }

    #[test]
    fn hostile_entries_do_not_overflow() {
        let mut entries = vec![0xff; 128];
        entries[32..40].copy_from_slice(&5_u64.to_le_bytes());
        entries[40..48].copy_from_slice(&3_u64.to_le_bytes());
        let table = read_disk(&header(2, 1, 128, &entries), &entries).unwrap();
        assert_eq!(table.partitions[0].length, 0);
        assert!(table.needs_repair);
    }
}
