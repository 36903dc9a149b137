//! The state of the partition, as systemd-boot sees it.

use std::{cmp::Reverse, collections::BTreeMap, io};

use crate::{
    entry::{Entry, NotAnEntry},
    name::EntryName,
    slot::Slot,
    volume::{Volume, paths},
};

/// Size limit of an entry's file, in bytes. Ours have one sector.
const LARGEST_ENTRY: u64 = 4096;

/// A file in `loader/entries` whose name is one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: EntryName,
    /// Its content; an error if a power cut left only a part of it.
    pub entry: Result<Entry, NotAnEntry>,
}

/// The state of the partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// All files with entry names, the highest order first.
    pub entries: Vec<Found>,
    /// The UKIs and their sizes in bytes.
    pub ukis: BTreeMap<Slot, u64>,
    /// Entries of other systems, which the loader takes into account as well.
    pub foreign: Vec<String>,
    /// Whether systemd-boot is where the firmware looks for it. An empty file, which an interrupted installation leaves, does not count:
    /// the firmware skips it.
    pub has_loader: bool,
    /// Whether a new systemd-boot is there that did not replace the present one.
    pub has_new_loader: bool,
    /// Free space in bytes.
    pub free_bytes: u64,
}

impl State {
    /// Reads the state. A partition without any of our files is a valid state.
    ///
    /// # Errors
    /// The partition cannot be read.
    pub fn read(volume: &impl Volume) -> io::Result<Self> {
        let mut state = Self {
            free_bytes: volume.free_bytes()?,
            ..Self::default()
        };
        for (name, bytes) in volume.list(paths::ENTRIES)? {
            match name.parse::<EntryName>() {
                Ok(parsed) => {
                    let text = match bytes {
                        0..=LARGEST_ENTRY => volume.read(&parsed.path())?,
                        _ => Vec::new(),
                    };
                    let entry = Entry::read(parsed.clone(), &String::from_utf8_lossy(&text));
                    state.entries.push(Found {
                        name: parsed,
                        entry,
                    });
                }
                Err(_) if name.to_ascii_lowercase().ends_with(".conf") => {
                    state.foreign.push(name);
                }
                Err(_) => {}
            }
        }
        // If an interrupted blessing left two files of one entry, the blessed one comes first.
        state
            .entries
            .sort_by_key(|found| (Reverse(found.name.order), found.name.tries.is_some()));
        state.foreign.sort();
        for (name, bytes) in volume.list(paths::UKIS)? {
            if let Some(slot) = Slot::from_uki_path(&format!("{}/{name}", paths::UKIS)) {
                state.ukis.insert(slot, bytes);
            }
        }
        let boot = volume.list(paths::BOOT)?;
        let size = |path: &str| {
            boot.iter()
                .find(|(name, _)| path.ends_with(&format!("/{name}")))
                .map(|(_, bytes)| *bytes)
        };
        state.has_loader = size(paths::LOADER).is_some_and(|bytes| bytes > 0);
        state.has_new_loader = size(paths::NEW_LOADER).is_some();
        Ok(state)
    }

    /// The entries in the order in which systemd-boot (257) takes them: by order, those without tries left at the end. It only checks that
    /// the file exists which an entry names.
    #[must_use]
    pub fn boot_order(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self
            .whole_entries()
            .filter(|entry| self.ukis.contains_key(&entry.slot))
            .collect();
        entries.sort_by_key(|entry| entry.name.tries.is_some_and(|tries| tries.exhausted()));
        entries
    }

    /// The entry that would be started at the next boot.
    #[must_use]
    pub fn next_boot(&self) -> Option<&Entry> {
        self.boot_order().first().copied()
    }

    /// The version to fall back to: the first one that was healthy once.
    #[must_use]
    pub fn last_known_good(&self) -> Option<&Entry> {
        self.whole_entries()
            .find(|entry| entry.name.is_blessed() && self.has_whole_size(entry))
    }

    /// The entry with this order, blessed or not: its name changes with every start.
    #[must_use]
    pub fn of_order(&self, order: u32) -> Option<&Entry> {
        self.whole_entries().find(|entry| entry.name.order == order)
    }

    /// Entries with complete content, the highest order first.
    pub fn whole_entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter_map(|found| found.entry.as_ref().ok())
    }

    /// The highest order in use, of complete entries and others; 0 if there are none.
    #[must_use]
    pub fn highest_order(&self) -> u32 {
        self.entries
            .iter()
            .map(|found| found.name.order)
            .max()
            .unwrap_or(0)
    }

    /// Whether the UKI exists with its full size. Its content is not read.
    pub(crate) fn has_whole_size(&self, entry: &Entry) -> bool {
        self.ukis.get(&entry.slot) == Some(&entry.uki.bytes)
    }
}
