//! A disk's former content, and every write to it: they give the disk in any state.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use crate::SECTOR;
use crate::content::Content;
use crate::states::{DiskState, Fault};
use crate::write_log::{Data, Entry, LogError, Write, WriteLog};

/// Why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RecordingError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("cannot read the disk {}", path.display())]
    Disk { path: PathBuf, source: io::Error },
    #[error(
        "entry {0} of the write log is beyond the end of the disk: they do not belong together"
    )]
    Beyond(usize),
    /// The log lacks some writes.
    #[error("sector {sector} of {} is not what the disk before and the write log say: record again", disk.display())]
    Different { disk: PathBuf, sector: u64 },
}

/// A recorded disk.
#[derive(Debug)]
pub struct Recording {
    base: Content,
    log: WriteLog,
    /// The writes of each sector, sorted: sector, number of the log's entry.
    written: Vec<(u32, u32)>,
}

impl Recording {
    /// Reads a disk's former content, and the log of the writes to it.
    ///
    /// # Errors
    /// One of them cannot be read, or they do not belong together.
    pub fn read(base: &Path, log: &Path) -> Result<Self, RecordingError> {
        let content = Content::read(base).map_err(|source| RecordingError::Disk {
            path: base.to_owned(),
            source,
        })?;
        Self::of(content, WriteLog::read(log)?)
    }

    pub(crate) fn of(base: Content, log: WriteLog) -> Result<Self, RecordingError> {
        let disk_sectors = base.bytes() / SECTOR;
        let mut written = Vec::new();
        for (number, entry) in log.entries.iter().enumerate() {
            let Entry::Write(write) = entry else { continue };
            let beyond = || RecordingError::Beyond(number);
            let end = write.sector.checked_add(write.sectors).ok_or_else(beyond)?;
            let range = u32::try_from(write.sector)
                .ok()
                .zip(u32::try_from(end).ok());
            let (start, end) = range.filter(|_| end <= disk_sectors).ok_or_else(beyond)?;
            let number = u32::try_from(number).map_err(|_| beyond())?;
            written.extend((start..end).map(|sector| (sector, number)));
        }
        written.sort_unstable();
        Ok(Self { base, log, written })
    }

    /// The log of the writes.
    #[must_use]
    pub fn log(&self) -> &WriteLog {
        &self.log
    }

    /// The disk's size, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.base.bytes()
    }

    /// The state after all entries.
    #[must_use]
    pub fn end(&self) -> DiskState {
        DiskState {
            entries: self.log.entries.len(),
            fault: Fault::None,
        }
    }

    /// Compares the disk at the end with the recording's last state.
    ///
    /// # Errors
    /// They differ: a write is not in the log.
    pub fn check_end(&self, disk: &Path) -> Result<(), RecordingError> {
        let found = Content::read(disk).map_err(|source| RecordingError::Disk {
            path: disk.to_owned(),
            source,
        })?;
        let state = self.end();
        let zeros = [0; SECTOR as usize];
        let mut expected = zeros;
        let of_base = self.base.all().chain(found.all());
        let sectors =
            of_base.flat_map(|(at, bytes)| at / SECTOR..(at + bytes.len() as u64) / SECTOR);
        let of_log = self.written.iter().map(|(sector, _)| u64::from(*sector));
        for sector in sectors.chain(of_log) {
            self.read_sector(&state, sector, &mut expected);
            if found.sector(sector).unwrap_or(&zeros) != expected {
                return Err(RecordingError::Different {
                    disk: disk.to_owned(),
                    sector,
                });
            }
        }
        Ok(())
    }

    /// Reads a sector in a state.
    pub(crate) fn read_sector(
        &self,
        state: &DiskState,
        sector: u64,
        out: &mut [u8; SECTOR as usize],
    ) {
        let content = match self.last_write(state, sector) {
            Some(write) => match &write.data {
                Data::Zeros => None,
                Data::Bytes(bytes) => {
                    let at = ((sector - write.sector) * SECTOR) as usize;
                    bytes.get(at..at + SECTOR as usize)
                }
            },
            None => self.base.sector(sector),
        };
        match content {
            Some(bytes) => out.copy_from_slice(bytes),
            None => out.fill(0),
        }
    }

    /// Returns the last write of a sector that is on the disk in a state.
    fn last_write(&self, state: &DiskState, sector: u64) -> Option<&Write> {
        let limit = (
            u32::try_from(sector).ok()?,
            u32::try_from(state.entries).ok()?,
        );
        let end = self.written.partition_point(|it| *it < limit);
        self.written[..end]
            .iter()
            .rev()
            .take_while(|(of, _)| *of == limit.0)
            .find_map(|(_, number)| {
                let number = *number as usize;
                let Entry::Write(write) = &self.log.entries[number] else {
                    return None;
                };
                let (from, to) = state.written(number, write)?;
                (from..to)
                    .contains(&(sector - write.sector))
                    .then_some(write)
            })
    }

    /// Writes the sectors from `start` to before `end`, as they are in a state, into a file that is empty: with holes where they
    /// are zero.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_to(&self, file: &File, state: &DiskState, start: u64, end: u64) -> io::Result<()> {
        file.set_len((end - start) * SECTOR)?;
        let place = |sector: u64| (sector - start) * SECTOR;
        for (at, bytes) in self.base.within(start * SECTOR, end * SECTOR) {
            file.write_all_at(bytes, at - start * SECTOR)?;
        }
        for (number, entry) in self.log.entries.iter().enumerate().take(state.entries) {
            let Entry::Write(write) = entry else { continue };
            let Some((from, to)) = state.written(number, write) else {
                continue;
            };
            let first = (write.sector + from).max(start);
            let last = (write.sector + to).min(end);
            if first >= last {
                continue;
            }
            match &write.data {
                Data::Zeros => {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(file, hole, place(first), (last - first) * SECTOR)?;
                }
                Data::Bytes(bytes) => {
                    let byte = |sector: u64| ((sector - write.sector) * SECTOR) as usize;
                    file.write_all_at(&bytes[byte(first)..byte(last)], place(first))?;
                }
            }
        }
        Ok(())
    }

    /// Makes a file of the whole disk in a state.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn make_disk(&self, path: &Path, state: &DiskState) -> io::Result<()> {
        self.write_to(&File::create(path)?, state, 0, self.bytes() / SECTOR)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::states::{Side, Tears, states};

    fn write(sector: u64, fill: u8, sectors: u64) -> Entry {
        Entry::Write(Write {
            sector,
            sectors,
            data: match fill {
                0 => Data::Zeros,
                _ => Data::Bytes(vec![fill; (sectors * SECTOR) as usize]),
            },
            durable: false,
        })
    }

    fn recording() -> Recording {
        let base = tempfile::NamedTempFile::new().unwrap();
        base.as_file().set_len(16 * SECTOR).unwrap();
        base.as_file().write_all_at(&[9; 512], 3 * SECTOR).unwrap();
        let log = WriteLog::of(vec![
            write(2, 1, 4),
            Entry::Flush,
            write(4, 2, 4),
            write(3, 0, 2),
        ]);
        Recording::of(Content::read(base.path()).unwrap(), log).unwrap()
    }

    /// Returns the first byte of each sector.
    fn shown(recording: &Recording, state: &DiskState) -> String {
        let mut sector = [0; 512];
        let shown = (0..10).map(|number| {
            recording.read_sector(state, number, &mut sector);
            sector[0].to_string()
        });
        shown.collect()
    }

    #[test]
    fn a_state_is_what_reached_the_disk() {
        let recording = recording();
        let state = |entries, fault| DiskState { entries, fault };
        let shown = |entries, fault| shown(&recording, &state(entries, fault));
        assert_eq!(shown(0, Fault::None), "0009000000");
        assert_eq!(shown(1, Fault::None), "0011110000");
        assert_eq!(shown(1, Fault::Torn(1, Side::Head)), "0019000000");
        assert_eq!(shown(1, Fault::Torn(1, Side::Tail)), "0009010000");
        assert_eq!(shown(4, Fault::None), "0010022200");
        assert_eq!(shown(4, Fault::Lost(2)), "0010010000");
        assert_eq!(shown(4, Fault::Torn(1, Side::Tail)), "0011022200");
    }

    #[test]
    fn files_hold_what_sectors_do() {
        let recording = recording();
        for state in states(recording.log(), 0..=4, Tears::Everywhere) {
            let file = tempfile::NamedTempFile::new().unwrap();
            recording.make_disk(file.path(), &state).unwrap();
            let bytes = std::fs::read(file.path()).unwrap();
            let in_file: String = (0..10).map(|at| bytes[at * 512].to_string()).collect();
            assert_eq!(in_file, shown(&recording, &state), "{state}");

            let part = tempfile::NamedTempFile::new().unwrap();
            recording.write_to(part.as_file(), &state, 3, 6).unwrap();
            assert_eq!(std::fs::read(part.path()).unwrap(), bytes[3 * 512..6 * 512]);
        }
    }

    #[test]
    fn the_end_must_be_what_was_recorded() {
        let recording = recording();
        let disk = tempfile::NamedTempFile::new().unwrap();
        recording.make_disk(disk.path(), &recording.end()).unwrap();
        recording.check_end(disk.path()).unwrap();
        disk.as_file().write_all_at(&[1], 9 * SECTOR).unwrap();
        let error = recording.check_end(disk.path()).unwrap_err();
        assert!(
            matches!(error, RecordingError::Different { sector: 9, .. }),
            "{error}"
        );
    }
}
