//! The states that a power cut may leave a disk in, as values.

use std::fmt;
use std::ops::RangeInclusive;

use crate::write_log::{Entry, Write, WriteLog};

/// A state of the disk: the first entries of the log, with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DiskState {
    /// Number of log entries that have happened.
    pub entries: usize,
    /// The write that did not, or not wholly, reach the disk.
    pub fault: Fault,
}

/// The write that did not, or not wholly, reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// None: all writes did.
    None,
    /// The write with this number, from 0, was still in the disk's cache.
    Lost(usize),
    /// Only this many sectors of the last write are on the disk, at one side of it.
    Torn(u64, Side),
}

/// The part of a torn write that is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first sectors.
    Head,
    /// The last sectors.
    Tail,
}

/// The kinds of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// All writes up to the cut.
    Prefix,
    /// All writes but one that was not flushed.
    Lost,
    /// All writes, the last one in part.
    Torn,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Prefix, Self::Lost, Self::Torn];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prefix => "prefix",
            Self::Lost => "one lost",
            Self::Torn => "torn",
        })
    }
}

impl DiskState {
    /// The state's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.fault {
            Fault::None => Kind::Prefix,
            Fault::Lost(_) => Kind::Lost,
            Fault::Torn(..) => Kind::Torn,
        }
    }

    /// Returns the sectors of a write, from 0, that are on the disk; none when no sector is.
    #[must_use]
    pub(crate) fn written(&self, number: usize, write: &Write) -> Option<(u64, u64)> {
        if number >= self.entries {
            return None;
        }
        match self.fault {
            Fault::Lost(lost) if lost == number => None,
            Fault::Torn(sectors, side) if number + 1 == self.entries => Some(match side {
                Side::Head => (0, sectors),
                Side::Tail => (write.sectors - sectors, write.sectors),
            }),
            _ => Some((0, write.sectors)),
        }
    }
}

impl fmt::Display for DiskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} entries", self.entries)?;
        match self.fault {
            Fault::None => Ok(()),
            Fault::Lost(number) => write!(f, " without the one of number {number}"),
            Fault::Torn(sectors, Side::Head) => {
                write!(f, ", of the last one the first {sectors} sectors")
            }
            Fault::Torn(sectors, Side::Tail) => {
                write!(f, ", of the last one the last {sectors} sectors")
            }
        }
    }
}

/// The places where writes are torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tears {
    /// Between any two sectors.
    Everywhere,
    /// As `Everywhere`, but writes of more than 8 KiB, which are data, only after the first sector, in the middle, and
    /// before the last.
    FewOfLong,
}

impl Tears {
    /// Returns the number of sectors before each tear.
    pub(crate) fn of(self, sectors: u64) -> Vec<u64> {
        /// 8 KiB: one or two blocks of a filesystem.
        const SHORT: u64 = 16;
        match self {
            Self::FewOfLong if sectors > SHORT => vec![1, sectors / 2, sectors - 1],
            _ => (1..sectors).collect(),
        }
    }
}

/// All states that a cut may leave while these entries happen: from before the first of them to after the last.
#[must_use]
pub fn states(log: &WriteLog, cuts: RangeInclusive<usize>, tears: Tears) -> Vec<DiskState> {
    let mut states = Vec::new();
    for entries in cuts {
        let state = |fault| DiskState { entries, fault };
        let last = entries.checked_sub(1).map(|last| &log.entries[last]);
        // A flush changes nothing.
        if !matches!(last, Some(Entry::Flush)) {
            states.push(state(Fault::None));
        }
        let Some(Entry::Write(last)) = last else {
            continue;
        };
        states.extend(
            unflushed(log, entries - 1)
                .into_iter()
                .map(|number| state(Fault::Lost(number))),
        );
        for sectors in tears.of(last.sectors) {
            states.push(state(Fault::Torn(sectors, Side::Head)));
            states.push(state(Fault::Torn(sectors, Side::Tail)));
        }
    }
    states
}

/// The writes before this entry that the disk may still lose: since the last flush, without durable ones. Without the entry
/// itself the state is a shorter prefix.
fn unflushed(log: &WriteLog, before: usize) -> Vec<usize> {
    let since = log.entries[..before]
        .iter()
        .rposition(|entry| *entry == Entry::Flush)
        .map_or(0, |flush| flush + 1);
    (since..before)
        .filter(|number| matches!(&log.entries[*number], Entry::Write(write) if !write.durable))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_log::Data;

    fn write(sector: u64, sectors: u64) -> Entry {
        Entry::Write(Write {
            sector,
            sectors,
            data: Data::Zeros,
            durable: false,
        })
    }

    #[test]
    fn every_prefix_every_loss_and_every_tear() {
        let log = WriteLog::of(vec![
            write(0, 1),
            write(1, 1),
            Entry::Flush,
            write(2, 3),
            write(5, 1),
        ]);
        let all: Vec<String> = states(&log, 0..=5, Tears::Everywhere)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            all,
            [
                "after 0 entries",
                "after 1 entries",
                "after 2 entries",
                "after 2 entries without the one of number 0",
                "after 4 entries",
                "after 4 entries, of the last one the first 1 sectors",
                "after 4 entries, of the last one the last 1 sectors",
                "after 4 entries, of the last one the first 2 sectors",
                "after 4 entries, of the last one the last 2 sectors",
                "after 5 entries",
                "after 5 entries without the one of number 3",
            ]
        );
        // States of a part of the log begin with the state before that part.
        assert_eq!(states(&log, 3..=4, Tears::Everywhere).len(), 5);
    }

    #[test]
    fn a_long_write_may_be_torn_in_a_few_places_alone() {
        assert!(Tears::FewOfLong.of(1).is_empty());
        assert_eq!(Tears::FewOfLong.of(3), [1, 2]);
        assert_eq!(Tears::FewOfLong.of(2048), [1, 1024, 2047]);
        assert_eq!(Tears::Everywhere.of(2048).len(), 2047);
    }

    #[test]
    fn what_is_durable_is_not_lost() {
        let mut entries = vec![write(0, 1), write(1, 1)];
        if let Entry::Write(first) = &mut entries[0] {
            first.durable = true;
        }
        let log = WriteLog::of(entries);
        assert!(
            states(&log, 0..=2, Tears::Everywhere)
                .iter()
                .all(|it| it.kind() == Kind::Prefix)
        );
    }
}
