//! The EFI system partition in a state, read as FAT and judged by the loader's rules.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

use blake3::Hash;
use instar_esp::{State, paths};

use crate::SECTOR;
use crate::fat_volume::FatVolume;
use crate::recording::Recording;
use crate::region::{Region, Touching};
use crate::states::DiskState;

/// The result of a boot from the partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// There is no loader: the firmware goes on with the next device.
    NoLoader,
    /// The loader starts this version.
    Version(String),
    /// The loader, or the UKI that it would start, is damaged.
    Broken(String),
}

/// The undamaged files: the loader, and UKIs with their versions.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    pub(crate) loaders: &'a [Hash],
    pub(crate) ukis: &'a BTreeMap<[u8; 32], String>,
}

/// Judges the partition. Returns also the sectors that it read: the verdict holds for every state with the same content
/// there.
pub(crate) fn judge(
    recording: &Recording,
    state: &DiskState,
    region: &Region,
    whole: &Whole<'_>,
) -> (Start, Trace) {
    let sectors = Sectors::of(recording, state, region.start, region.end);
    let trace = sectors.trace.clone();
    let start = match read(sectors, whole) {
        Ok(start) => start,
        // Firmware that cannot read the partition finds no loader on it.
        Err(Unreadable::Filesystem(_)) => Start::NoLoader,
        Err(Unreadable::File(error)) => Start::Broken(error.to_string()),
    };
    (start, trace.take())
}

enum Unreadable {
    Filesystem(#[allow(dead_code, reason = "for whoever debugs")] io::Error),
    File(io::Error),
}

fn read(sectors: Sectors<'_>, whole: &Whole<'_>) -> Result<Start, Unreadable> {
    let volume = FatVolume::open(sectors).map_err(Unreadable::Filesystem)?;
    let state = State::read(&volume).map_err(Unreadable::File)?;
    if !state.has_loader {
        return Ok(Start::NoLoader);
    }
    let loader = volume.digest(paths::LOADER).map_err(Unreadable::File)?;
    if !whole.loaders.contains(&loader) {
        return Ok(Start::Broken(format!("{} is damaged", paths::LOADER)));
    }
    let order = state.boot_order();
    let Some(next) = order.first() else {
        return Ok(Start::Broken("the loader finds no entry".to_owned()));
    };
    // The loader starts the other entries after the tries of the first are used up.
    for entry in order
        .iter()
        .filter(|entry| entry == &next || !entry.name.tries.is_some_and(|tries| tries.exhausted()))
    {
        let digest = volume
            .digest(&entry.slot.uki_path())
            .map_err(Unreadable::File)?;
        let version = whole.ukis.get(digest.as_bytes());
        let is_whole = digest == entry.uki.blake3
            && version.is_some_and(|version| *version == entry.name.version.to_string());
        if !is_whole {
            return Ok(Start::Broken(format!(
                "the UKI of {} is damaged",
                entry.name
            )));
        }
    }
    Ok(Start::Version(next.name.version.to_string()))
}

/// The sectors that were read.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// The first sector of the trace.
    start: u64,
    read: Vec<bool>,
}

impl Trace {
    fn note(&mut self, sector: u64) {
        if let Some(read) = self.read.get_mut((sector - self.start) as usize) {
            *read = true;
        }
    }

    /// Returns the writes that change one of these sectors.
    pub(crate) fn touching(&self, recording: &Recording) -> Touching {
        let place = |sector: u64| {
            let place = sector.saturating_sub(self.start) as usize;
            place.min(self.read.len())
        };
        Touching::of(recording, |from, to| {
            self.read[place(from)..place(to)].contains(&true)
        })
    }
}

/// A reader of the disk's sectors in a state.
#[derive(Debug)]
pub(crate) struct Sectors<'a> {
    recording: &'a Recording,
    state: DiskState,
    start: u64,
    bytes: u64,
    position: u64,
    trace: Rc<RefCell<Trace>>,
    /// Cache of the sectors that were read last, each in a slot that follows from its number: the sector of a table is
    /// read for each of its hundred entries, alternating with the entries' clusters.
    recent: Vec<(u64, [u8; SECTOR as usize])>,
}

impl<'a> Sectors<'a> {
    pub(crate) fn of(recording: &'a Recording, state: &DiskState, start: u64, end: u64) -> Self {
        Self {
            recording,
            state: *state,
            start,
            bytes: (end - start) * SECTOR,
            position: 0,
            trace: Rc::new(RefCell::new(Trace {
                start,
                read: vec![false; usize::try_from(end - start).unwrap_or_default()],
            })),
            recent: vec![(u64::MAX, [0; SECTOR as usize]); 64],
        }
    }
}

impl Read for Sectors<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let within = (self.position % SECTOR) as usize;
        let left = usize::try_from(self.bytes.saturating_sub(self.position)).unwrap_or(usize::MAX);
        let count = out.len().min(left).min(SECTOR as usize - within);
        if count == 0 {
            return Ok(0);
        }
        let sector = self.start + self.position / SECTOR;
        let place = (sector % self.recent.len() as u64) as usize;
        let (known, content) = &mut self.recent[place];
        if *known != sector {
            self.recording.read_sector(&self.state, sector, content);
            *known = sector;
            self.trace.borrow_mut().note(sector);
        }
        out[..count].copy_from_slice(&content[within..within + count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Sectors<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(delta) => self.bytes.checked_add_signed(delta),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
        };
        self.position = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
