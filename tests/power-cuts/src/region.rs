//! Parts of the disk, and the comparison of two states in them.

use crate::recording::Recording;
use crate::states::{DiskState, Fault};
use crate::write_log::Entry;

/// Consecutive sectors of the disk.
#[derive(Debug)]
pub(crate) struct Region {
    /// The first sector.
    pub(crate) start: u64,
    /// The sector after the last.
    pub(crate) end: u64,
    touching: Touching,
}

/// The writes that touch some sectors: numbers of entries, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Touching(Vec<usize>);

/// The key of a state: two states with the same key have the same content in these sectors. (Not the other way round:
/// the same content may have been written twice.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Number of the touching writes that have happened.
    applied: usize,
    fault: Fault,
}

impl Region {
    pub(crate) fn of(recording: &Recording, start: u64, end: u64) -> Self {
        let touching = Touching::of(recording, |from, to| from < end && to > start);
        Self {
            start,
            end,
            touching,
        }
    }

    pub(crate) fn key(&self, state: &DiskState) -> Key {
        self.touching.key(state)
    }
}

impl Touching {
    /// Returns the writes for which `touches(first sector, sector after the last)` is true.
    pub(crate) fn of(recording: &Recording, touches: impl Fn(u64, u64) -> bool) -> Self {
        let entries = recording.log().entries.iter().enumerate();
        let numbers = entries.filter_map(|(number, entry)| match entry {
            Entry::Write(write) if touches(write.sector, write.sector + write.sectors) => {
                Some(number)
            }
            _ => None,
        });
        Self(numbers.collect())
    }

    /// Returns the key of a state, for these writes.
    pub(crate) fn key(&self, state: &DiskState) -> Key {
        let applied = self.0.partition_point(|number| *number < state.entries);
        let last = applied.checked_sub(1).map(|last| self.0[last]);
        match state.fault {
            // A state without the last write is the state before it.
            Fault::Lost(lost) if last == Some(lost) => Key {
                applied: applied - 1,
                fault: Fault::None,
            },
            Fault::Lost(lost) if self.0[..applied].binary_search(&lost).is_ok() => Key {
                applied,
                fault: state.fault,
            },
            Fault::Torn(..) if last.is_some_and(|last| last + 1 == state.entries) => Key {
                applied,
                fault: state.fault,
            },
            _ => Key {
                applied,
                fault: Fault::None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use super::*;
    use crate::content::Content;
    use crate::states::{Tears, states};
    use crate::write_log::{Data, Write, WriteLog};

    #[test]
    fn states_with_one_key_have_one_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 * 512).unwrap();
        let entries = (0..60_u64).map(|number| match number % 7 {
            6 => Entry::Flush,
            _ => Entry::Write(Write {
                sector: number * 5 % 17,
                sectors: 1 + number % 4,
                data: Data::Bytes(vec![number as u8; 512 * (1 + number as usize % 4)]),
                durable: number % 11 == 0,
            }),
        });
        let log = WriteLog::of(entries.collect());
        let recording = Recording::of(Content::read(file.path()).unwrap(), log).unwrap();
        let mut shared = 0;
        for (start, end) in [(0, 9), (9, 30)] {
            let region = Region::of(&recording, start, end);
            let mut known = HashMap::new();
            for state in states(recording.log(), 0..=60, Tears::Everywhere) {
                let mut sector = [0; 512];
                let content: Vec<u8> = (start..end)
                    .map(|number| {
                        recording.read_sector(&state, number, &mut sector);
                        sector[0]
                    })
                    .collect();
                if let Some(before) = known.insert(region.key(&state), content.clone()) {
                    shared += 1;
                    assert_eq!(before, content, "{state}");
                }
            }
        }
        assert!(shared > 100, "{shared}");
    }
}
