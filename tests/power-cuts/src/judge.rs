//! Judges what a machine would do with each state of its disk.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use blake3::Hash;

use crate::SECTOR;
use crate::esp_reader::{self, Start, Whole};
use crate::ext4::{self, Ext4, ToolError};
use crate::memory::Memory;
use crate::parallel;
use crate::recording::Recording;
use crate::records::are_pins_readable;
use crate::region::{Key, Region};
use crate::states::{DiskState, Fault, Tears};
use crate::store::{STORE, Store};
use crate::table;
use crate::write_log::Entry;

/// The machine config, the record of an upgrade and that of pinned images, on STATE.
const CONFIG: &str = "/config.yaml";
const UPGRADE_RECORD: &str = "/upgrade.json";
const PINS: &str = "/image-pins.json";

/// The content that the disk may have had during the recording.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The versions, by the BLAKE3 digest of their UKIs.
    pub ukis: BTreeMap<[u8; 32], String>,
    /// The digests of the loaders.
    pub loaders: Vec<Hash>,
    /// The machine configs in use.
    pub configs: Vec<Vec<u8>>,
    /// Whether the installation medium is present: the machine boots from it as long as nothing boots from the disk.
    pub has_medium: bool,
    /// Whether the config may be missing, because a reset erases it.
    pub is_reset: bool,
    /// Whether the store of images on EPHEMERAL is judged: what it has at the beginning and at the end of the states is what it may have.
    pub judges_store: bool,
}

/// The fate of a machine with this disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Boots this version from its disk.
    Boots {
        /// The version.
        version: String,
        /// Whether the machine finds its config.
        has_config: bool,
    },
    /// Boots from the medium and installs once more.
    Installs,
    /// Does not boot; a person has to repair it.
    Fails(String),
}

/// Why a state could not be judged.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum JudgeError {
    #[error("the disk has no partition table in the end: {0}")]
    NoTable(String),
    #[error("the disk has no partition {0} in the end")]
    NoPartition(&'static str),
    #[error(
        "the disk has no images, blobs and shared files at either end: there is nothing to judge"
    )]
    NoStore,
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// The states and the verdict on each.
#[derive(Debug)]
pub struct Judged {
    /// The verdicts, in the order of the states.
    pub verdicts: Vec<(DiskState, Verdict)>,
    /// Indices in `verdicts` of the states that differ from the one before them in boot assets, config or partition
    /// table.
    pub different: Vec<usize>,
    /// Number of partition contents that were read for the verdicts.
    pub contents: usize,
}

/// Judges the states of one recording.
#[derive(Debug)]
pub struct Judge<'a> {
    recording: &'a Recording,
    scratch: PathBuf,
    table: Region,
    backup_table: Region,
    efi: Region,
    state: Region,
    var: Region,
}

impl<'a> Judge<'a> {
    /// Returns a judge of this recording; copies of partitions are made in `scratch`.
    ///
    /// # Errors
    /// The disk at the recording's end is not a node's.
    pub fn of(recording: &'a Recording, scratch: &Path) -> Result<Self, JudgeError> {
        let places =
            table::places(recording).map_err(|error| JudgeError::NoTable(error.to_string()))?;
        let region = |label: &'static str| {
            let place = places.iter().find(|(name, ..)| name == label);
            let (_, start, end) = place.ok_or(JudgeError::NoPartition(label))?;
            Ok::<_, JudgeError>(Region::of(recording, *start, *end))
        };
        let disk = recording.bytes() / SECTOR;
        // Partitions keep a mebibyte away from both ends.
        let mebibyte = (1 << 20) / SECTOR;
        Ok(Self {
            recording,
            scratch: scratch.to_owned(),
            table: Region::of(recording, 0, mebibyte),
            backup_table: Region::of(recording, disk - mebibyte, disk),
            efi: region("EFI")?,
            state: region("STATE")?,
            var: region("EPHEMERAL")?,
        })
    }

    /// Judges states.
    ///
    /// # Errors
    /// A program that this needs cannot be run.
    pub fn judge(&self, states: &[DiskState], expected: &Expected) -> Result<Judged, JudgeError> {
        let tables = self.each(states, &[&self.table, &self.backup_table], |state| {
            Ok(table::is_whole(self.recording, state))
        })?;
        let whole = Whole {
            loaders: &expected.loaders,
            ukis: &expected.ukis,
        };
        let memory = Memory::new();
        let starts = self.each(states, &[&self.efi], |state| {
            Ok(memory.recall_or(state, || {
                let (start, trace) = esp_reader::judge(self.recording, state, &self.efi, &whole);
                (start, trace.touching(self.recording))
            }))
        })?;
        let configs = self.each(states, &[&self.state], |state| self.config(state, expected))?;
        let for_var: Vec<DiskState> = states.iter().map(|state| self.for_var(state)).collect();
        let known = self.known_stores(states, expected)?;
        let vars = self.each(&for_var, &[&self.var], |state| self.var(state, &known))?;
        let contents = [
            tables.made.len(),
            memory.classes(),
            configs.made.len(),
            vars.made.len(),
        ];

        let mut different = Vec::new();
        let mut before = None;
        let mut verdicts = Vec::with_capacity(states.len());
        for (number, state) in states.iter().enumerate() {
            let (class, start) = starts.of(number);
            let key = (tables.number[number], *class, configs.number[number]);
            if before.replace(key) != Some(key) {
                different.push(number);
            }
            let verdict = verdict(
                *tables.of(number),
                start,
                configs.of(number),
                vars.of(number),
                expected,
            );
            verdicts.push((*state, verdict));
        }
        Ok(Judged {
            verdicts,
            different,
            contents: contents.iter().sum(),
        })
    }

    /// Reduces the states of /var, which holds replaceable data and only has to be mountable. They are: every prefix; every
    /// prefix with a torn last write; and for each write that may be lost the one state with the most writes after it. Pulling
    /// an image writes hundreds of pieces between two flushes, and their pairs are tens of thousands. So are the sectors of an
    /// image's long writes: of those the first, half or all but one are there.
    fn for_var(&self, state: &DiskState) -> DiskState {
        let entries = &self.recording.log().entries;
        let is_looked_at = match state.fault {
            Fault::None => true,
            Fault::Lost(_) => matches!(entries.get(state.entries), None | Some(Entry::Flush)),
            Fault::Torn(there, _) => match entries[..state.entries].last() {
                Some(Entry::Write(last)) => Tears::FewOfLong.of(last.sectors).contains(&there),
                _ => true,
            },
        };
        let fault = if is_looked_at {
            state.fault
        } else {
            Fault::None
        };
        DiskState { fault, ..*state }
    }

    /// The contents of the store of images in the first and in the last state without a fault; empty if it is not judged.
    fn known_stores(
        &self,
        states: &[DiskState],
        expected: &Expected,
    ) -> Result<Vec<Store>, JudgeError> {
        if !expected.judges_store {
            return Ok(Vec::new());
        }
        let mut whole = states.iter().filter(|state| state.fault == Fault::None);
        let ends = [whole.next(), whole.next_back()];
        let mut known = Vec::new();
        for state in ends.into_iter().flatten() {
            let (_, store) = self.read_var(state)?;
            known.extend(store);
        }
        match known.iter().any(Store::has_everything) {
            true => Ok(known),
            false => Err(JudgeError::NoStore),
        }
    }

    /// /var, and the store of images on it.
    fn read_var(&self, state: &DiskState) -> Result<(Ext4, Option<Store>), ToolError> {
        ext4::judge_and_read(
            self.recording,
            state,
            &self.var,
            &[],
            &self.scratch,
            |partition| {
                let failed = |source| ToolError::Copy {
                    folder: self.scratch.clone(),
                    source,
                };
                let copy = tempfile::tempdir_in(&self.scratch).map_err(failed)?;
                ext4::copy_directory(partition, STORE, copy.path())?;
                Store::read(&copy.path().join("instar")).map_err(failed)
            },
        )
    }

    /// /var; a store with something else than the known contents makes it broken.
    fn var(&self, state: &DiskState, known: &[Store]) -> Result<Ext4, ToolError> {
        if known.is_empty() {
            return ext4::judge(self.recording, state, &self.var, &[], &self.scratch);
        }
        let (judged, store) = self.read_var(state)?;
        Ok(match store.and_then(|store| store.complaint(known)) {
            Some(why) => Ext4::Broken(format!("the store of images: {why}")),
            None => judged,
        })
    }

    fn config(&self, state: &DiskState, expected: &Expected) -> Result<Config, ToolError> {
        let files = [CONFIG, UPGRADE_RECORD, PINS];
        Ok(
            match ext4::judge(self.recording, state, &self.state, &files, &self.scratch)? {
                Ext4::Nothing => Config::Gone,
                Ext4::Broken(why) => Config::Broken(why),
                Ext4::Mounted(files) => match files.as_slice() {
                    [_, _, Some(pins)] if !are_pins_readable(pins) => {
                        Config::Broken("the record of pins is damaged".to_owned())
                    }
                    [config, record, _] => found(config.as_deref(), record.as_deref(), expected),
                    _ => Config::Gone,
                },
            },
        )
    }

    /// Does the work once for all states that are the same in these regions.
    fn each<Made: Send>(
        &self,
        states: &[DiskState],
        regions: &[&Region],
        work: impl Fn(&DiskState) -> Result<Made, ToolError> + Sync,
    ) -> Result<Each<Made>, ToolError> {
        let mut known: HashMap<Vec<Key>, usize> = HashMap::new();
        let mut first = Vec::new();
        let number = states
            .iter()
            .map(|state| {
                let key = regions.iter().map(|region| region.key(state)).collect();
                *known.entry(key).or_insert_with(|| {
                    first.push(*state);
                    first.len() - 1
                })
            })
            .collect();
        let made = parallel::map(&first, work)
            .into_iter()
            .collect::<Result<Vec<Made>, ToolError>>()?;
        Ok(Each { number, made })
    }
}

/// Results of work on states, one for all states that are the same.
struct Each<Made> {
    /// For each state, the index of its result in `made`.
    number: Vec<usize>,
    made: Vec<Made>,
}

impl<Made> Each<Made> {
    fn of(&self, state: usize) -> &Made {
        &self.made[self.number[state]]
    }
}

/// The node's config on STATE.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Config {
    Found,
    Gone,
    Broken(String),
}

fn found(config: Option<&[u8]>, record: Option<&[u8]>, expected: &Expected) -> Config {
    // A node that cannot read the record of an upgrade does not know whether it is on trial.
    let is_readable = |record: &[u8]| serde_json::from_slice::<serde_json::Value>(record).is_ok();
    if record.is_some_and(|record| !is_readable(record)) {
        return Config::Broken("the record of an upgrade is damaged".to_owned());
    }
    match config {
        None => Config::Gone,
        Some(config) if expected.configs.iter().any(|known| known == config) => Config::Found,
        Some(config) => Config::Broken(format!(
            "the machine config is none that was given: {} bytes",
            config.len()
        )),
    }
}

fn verdict(
    has_table: bool,
    start: &Start,
    config: &Config,
    var: &Ext4,
    expected: &Expected,
) -> Verdict {
    let fails = |why: &str| Verdict::Fails(why.to_owned());
    if has_table {
        if let Config::Broken(why) = config {
            return Verdict::Fails(format!("STATE: {why}"));
        }
        if let Ext4::Broken(why) = var {
            return Verdict::Fails(format!("EPHEMERAL: {why}"));
        }
    }
    match (has_table, start) {
        (true, Start::Broken(why)) => Verdict::Fails(format!("EFI: {why}")),
        (true, Start::Version(version)) => match config {
            Config::Gone if !expected.is_reset => {
                Verdict::Fails(format!("{version} boots and has lost its config"))
            }
            config => Verdict::Boots {
                version: version.clone(),
                has_config: *config == Config::Found,
            },
        },
        _ if expected.has_medium => Verdict::Installs,
        (true, Start::NoLoader) => fails("the loader is gone"),
        (false, _) => fails("the partition table is gone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine() -> Ext4 {
        Ext4::Mounted(Vec::new())
    }

    fn boots(has_config: bool) -> Verdict {
        Verdict::Boots {
            version: "v0.1.0".to_owned(),
            has_config,
        }
    }

    #[test]
    fn a_machine_boots_with_its_config_or_is_broken() {
        let starts = Start::Version("v0.1.0".to_owned());
        let mut expected = Expected::default();
        let judge = |table, start: &Start, config: Config, expected: &Expected| {
            verdict(table, start, &config, &fine(), expected)
        };
        assert_eq!(judge(true, &starts, Config::Found, &expected), boots(true));
        for (table, start, config) in [
            (true, &starts, Config::Gone),
            (true, &starts, Config::Broken(String::new())),
            (true, &Start::NoLoader, Config::Found),
            (true, &Start::Broken(String::new()), Config::Found),
            (false, &starts, Config::Found),
        ] {
            let verdict = judge(table, start, config, &expected);
            assert!(matches!(verdict, Verdict::Fails(_)), "{verdict:?}");
        }
        expected.is_reset = true;
        assert_eq!(judge(true, &starts, Config::Gone, &expected), boots(false));
    }

    #[test]
    fn with_a_medium_nothing_on_the_disk_is_no_failure() {
        let expected = Expected {
            has_medium: true,
            ..Expected::default()
        };
        for (table, start) in [(false, Start::NoLoader), (true, Start::NoLoader)] {
            let verdict = verdict(table, &start, &Config::Gone, &fine(), &expected);
            assert_eq!(verdict, Verdict::Installs);
        }
        // A loader that finds nothing would keep the firmware from the medium.
        let broken = Start::Broken("the loader finds no entry".to_owned());
        let verdict = verdict(true, &broken, &Config::Found, &fine(), &expected);
        assert!(matches!(verdict, Verdict::Fails(_)), "{verdict:?}");
    }

    #[test]
    fn half_a_config_and_half_a_record_are_noticed() {
        let expected = Expected {
            configs: vec![b"version: v1alpha1\n".to_vec()],
            ..Expected::default()
        };
        let whole = expected.configs[0].as_slice();
        assert_eq!(found(Some(whole), Some(b"{}"), &expected), Config::Found);
        assert_eq!(found(None, None, &expected), Config::Gone);
        for (config, record) in [(&whole[..5], None), (b"", None), (whole, Some(&b"{"[..]))] {
            let judged = found(Some(config), record, &expected);
            assert!(matches!(judged, Config::Broken(_)), "{judged:?}");
        }
    }
}
