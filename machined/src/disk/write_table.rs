//! Writing a GPT so that a power cut at any moment leaves a table that can be read.
//!
//! The gpt crate computes the bytes; it would write both entry arrays before either header, so that a cut in between
//! loses both copies. Here its writes are staged in memory and then go to the disk in two flushed halves: the backup
//! copy at the end first, then the primary one with the protective MBR. One of the two is whole at every instant.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

use gpt::{GptConfig, GptError, disk::LogicalBlockSize, mbr::ProtectiveMBR, partition::Partition};

/// A partition to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u32,
    pub(super) label: String,
    pub(super) kind: gpt::partition_types::Type,
    /// A GUID to keep if the partition exists already.
    pub(super) guid: uuid::Uuid,
    /// First byte.
    pub(super) start: u64,
    /// Bytes.
    pub(super) length: u64,
}

/// Writes a table of these entries, over any older table.
pub(super) fn write(
    file: &File,
    size: u64,
    block: LogicalBlockSize,
    guid: uuid::Uuid,
    entries: &[Entry],
) -> io::Result<()> {
    for half in stage(file, size, block, guid, entries)? {
        for (offset, bytes) in half {
            file.write_all_at(&bytes, offset)?;
        }
        file.sync_all()?;
    }
    Ok(())
}

/// Sectors by their offset.
type Sectors = BTreeMap<u64, Vec<u8>>;

/// Computes the writes: first the backup copy, then (after a flush) the primary one.
fn stage(
    file: &File,
    size: u64,
    block: LogicalBlockSize,
    guid: uuid::Uuid,
    entries: &[Entry],
) -> io::Result<[Sectors; 2]> {
    // The gpt crate packs entries without gaps, which would renumber them.
    if !entries
        .iter()
        .map(|entry| entry.number)
        .eq((1..).take(entries.len()))
    {
        return Err(io::Error::other(
            "the partitions are not numbered 1, 2, 3, …",
        ));
    }
    let sector = block.as_u64();
    let mut stage = Stage {
        base: file,
        size,
        position: 0,
        sectors: BTreeMap::new(),
        sector,
    };
    let last = u32::try_from(size / sector - 1).unwrap_or(u32::MAX);
    ProtectiveMBR::with_lb_size(last)
        .overwrite_lba0(&mut stage)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut table = GptConfig::new()
        .writable(true)
        .logical_block_size(block)
        .create_from_device(stage, Some(guid))
        .map_err(gpt_error)?;
    let partitions = entries
        .iter()
        .map(|entry| (entry.number, partition(entry, sector)))
        .collect();
    table.update_partitions(partitions).map_err(gpt_error)?;
    let stage = table.write().map_err(gpt_error)?;
    let (primary, backup) = stage
        .sectors
        .into_iter()
        .partition(|(at, _)| *at < size / 2);
    Ok([backup, primary])
}

fn partition(entry: &Entry, sector: u64) -> Partition {
    Partition {
        part_type_guid: entry.kind.clone(),
        part_guid: entry.guid,
        first_lba: entry.start / sector,
        last_lba: (entry.start + entry.length) / sector - 1,
        flags: 0,
        name: entry.label.clone(),
    }
}

fn gpt_error(error: GptError) -> io::Error {
    match error {
        GptError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// A disk that keeps its writes in memory, by sector.
#[derive(Debug)]
struct Stage<'a> {
    base: &'a File,
    size: u64,
    position: u64,
    sector: u64,
    sectors: BTreeMap<u64, Vec<u8>>,
}

impl Stage<'_> {
    /// Returns the start of the sector at the position, the position within the sector, and how much of `wanted` fits in it.
    fn locate(&self, wanted: usize) -> (u64, usize, usize) {
        let within = self.position % self.sector;
        let room = (self.sector - within).min(self.size.saturating_sub(self.position));
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        (
            self.position - within,
            usize::try_from(within).unwrap_or(0),
            room.min(wanted),
        )
    }

    fn load(&self, start: u64) -> io::Result<Vec<u8>> {
        if let Some(sector) = self.sectors.get(&start) {
            return Ok(sector.clone());
        }
        let mut bytes = vec![0; usize::try_from(self.sector).unwrap_or(512)];
        self.base.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }
}

impl Read for Stage<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (start, within, count) = self.locate(buffer.len());
        if count > 0 {
            buffer[..count].copy_from_slice(&self.load(start)?[within..within + count]);
            self.position += count as u64;
        }
        Ok(count)
    }
}

impl Write for Stage<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let (start, within, count) = self.locate(buffer.len());
        if count > 0 {
            let mut sector = self.load(start)?;
            sector[within..within + count].copy_from_slice(&buffer[..count]);
            self.sectors.insert(start, sector);
            self.position += count as u64;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Stage<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(delta) => self.size.checked_add_signed(delta),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::disk::{
        layout::{ALIGNMENT, Label},
        probe::{Content, probe_file},
    };

    const SIZE: u64 = 64 * 1024 * 1024;

    fn blank() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        file
    }

    fn entries() -> Vec<Entry> {
        vec![Entry {
            number: 1,
            label: Label::Ephemeral.as_str().to_owned(),
            kind: gpt::partition_types::LINUX_FS,
            guid: uuid::Uuid::new_v4(),
            start: ALIGNMENT,
            length: SIZE - 2 * ALIGNMENT,
        }]
    }

    #[test]
    fn a_written_table_is_ours() {
        for block in [LogicalBlockSize::Lb512, LogicalBlockSize::Lb4096] {
            let file = blank();
            let guid = uuid::Uuid::new_v4();
            write(file.as_file(), SIZE, block, guid, &entries()).unwrap();
            let Content::Ours(table) = probe_file(file.path(), SIZE, block.as_u64()).unwrap()
            else {
                panic!("not ours")
            };
            assert!(!table.needs_repair);
            assert_eq!(
                (table.partitions[0].start, table.partitions[0].length),
                (ALIGNMENT, SIZE - 2 * ALIGNMENT)
            );
        }
    }

    /// A power cut leaves a prefix of a half, or all of it but one sector: disks reorder unflushed writes.
    #[test]
    fn a_power_cut_while_the_first_table_is_written_leaves_a_blank_disk_or_ours() {
        let file = blank();
        let [backup, primary] = stage(
            file.as_file(),
            SIZE,
            LogicalBlockSize::Lb512,
            uuid::Uuid::new_v4(),
            &entries(),
        )
        .unwrap();
        let check = |written: &[(&u64, &Vec<u8>)], state: &str| {
            let disk = blank();
            for (offset, bytes) in written {
                disk.as_file().write_all_at(bytes, **offset).unwrap();
            }
            match probe_file(disk.path(), SIZE, 512).unwrap() {
                Content::Blank | Content::Ours(_) => {}
                other => panic!("{state}: {other}"),
            }
        };
        let backup: Vec<_> = backup.iter().collect();
        let primary: Vec<_> = primary.iter().collect();
        let all: Vec<_> = backup.iter().chain(&primary).copied().collect();
        for count in 0..=all.len() {
            check(&all[..count], &format!("the first {count} sectors"));
        }
        for missing in 0..backup.len() {
            let written: Vec<_> = backup
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != missing)
                .map(|(_, w)| *w)
                .collect();
            check(
                &written,
                &format!("the backup without its sector {missing}"),
            );
        }
        for missing in 0..primary.len() {
            let rest = primary
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != missing)
                .map(|(_, w)| *w);
            let written: Vec<_> = backup.iter().copied().chain(rest).collect();
            check(
                &written,
                &format!("the primary without its sector {missing}"),
            );
        }
    }

    /// Once there is a table, no power cut during a rewrite may make the disk look blank.
    #[test]
    fn a_power_cut_while_a_table_is_rewritten_never_loses_it() {
        let file = blank();
        let guid = uuid::Uuid::new_v4();
        let mut entries = entries();
        entries[0].length /= 2;
        write(
            file.as_file(),
            SIZE,
            LogicalBlockSize::Lb512,
            guid,
            &entries,
        )
        .unwrap();
        entries[0].length = SIZE - 2 * ALIGNMENT;
        let halves = stage(
            file.as_file(),
            SIZE,
            LogicalBlockSize::Lb512,
            guid,
            &entries,
        )
        .unwrap();
        for (offset, bytes) in halves.iter().flatten() {
            file.as_file().write_all_at(bytes, *offset).unwrap();
            let content = probe_file(file.path(), SIZE, 512).unwrap();
            assert!(
                matches!(content, Content::Ours(_)),
                "after the sector at {offset}: {content}"
            );
        }
    }
}
