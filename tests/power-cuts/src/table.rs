//! The partition table: the partitions at the recording's end, and whether the table is whole in a state.

use crate::SECTOR;
use crate::esp_reader::Sectors;
use crate::read_only::ReadOnly;
use crate::recording::Recording;
use crate::states::{DiskState, Fault};

/// Protective MBR, header, and 32 sectors of entries.
const PRIMARY: u64 = 34;
/// Entries and header, at the end of the disk.
const BACKUP: u64 = 33;

/// A partition: its label, its first sector and the sector after its last.
pub(crate) type Place = (String, u64, u64);

/// Returns the partitions at the recording's end.
pub(crate) fn places(recording: &Recording) -> Result<Vec<Place>, gpt::GptError> {
    let end = recording.bytes() / SECTOR;
    let disk = gpt::GptConfig::new()
        .writable(false)
        .open_from_device(ReadOnly(Sectors::of(recording, &recording.end(), 0, end)))?;
    let partitions = disk.partitions().values();
    Ok(partitions
        .filter(|partition| partition.is_used())
        .map(|partition| {
            let place = (partition.first_lba, partition.last_lba + 1);
            (partition.name.clone(), place.0, place.1)
        })
        .collect())
}

/// Whether a copy of the table is whole, and with it the protective MBR, without which firmware looks for no table.
/// Each sector of the copy must be as before the recording, or each as at its end; a mixed copy is not whole.
pub(crate) fn is_whole(recording: &Recording, state: &DiskState) -> bool {
    let before = DiskState {
        entries: 0,
        fault: Fault::None,
    };
    let disk = recording.bytes() / SECTOR;
    let read = |state: &DiskState, start: u64, end: u64| -> Vec<u8> {
        let mut sector = [0; SECTOR as usize];
        let sectors = (start..end).flat_map(|number| {
            recording.read_sector(state, number, &mut sector);
            sector
        });
        sectors.collect()
    };
    let is_known = |start: u64, end: u64| {
        let found = read(state, start, end);
        let known = [before, recording.end()].map(|known| read(&known, start, end));
        found.iter().any(|byte| *byte != 0) && known.contains(&found)
    };
    is_known(0, 1) && (is_known(1, PRIMARY) || is_known(disk - BACKUP, disk))
}
