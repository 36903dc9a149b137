//! The EFI system partition, mounted only while it is read or changed.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use instar_esp::{Asset, Entry, Failed, Mounted, NotFreed, Plan, Refused, State, perform};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::disk::{ApplyError, ProbeError, Signature, open_exclusively, probe_partition};
use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;

/// Mount options. By default, vfat would turn read-only when it removes a file of which a power cut has left half, and the rest
/// of a plan would fail. Going on (`errors=continue`) is safe, because all writes of a plan are read back.
const OPTIONS: &str = "umask=0077,codepage=437,iocharset=ascii,shortname=mixed,errors=continue";
/// Mount point; in memory, and used for nothing else.
const TARGET: &str = "/run/instar/efi";

/// Held while the partition is mounted. Reads from the API may come while a version is blessed, and a second mount at the same
/// place would fail.
static IN_USE: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// Why the boot assets could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EspError {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("cannot mount the EFI system partition {} at {TARGET}", device.display())]
    Mount { device: PathBuf, source: io::Error },
    #[error("cannot read the EFI system partition {}", device.display())]
    Read { device: PathBuf, source: io::Error },
    #[error(transparent)]
    Open(#[from] ApplyError),
    #[error("clusters of {} that belong to no file stay lost", device.display())]
    NotFreed { device: PathBuf, source: NotFreed },
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Write(#[from] Failed),
    #[error(
        "this machine seems to come from the boot entry of {entry}, but {running} runs: that entry keeps its tries"
    )]
    OtherVersion { entry: String, running: String },
    /// There is no version to roll back to.
    #[error("there is no other version on this machine that was healthy once")]
    NoOther,
}

impl EspError {
    /// Returns whether freeing lost clusters failed because the disk could not be read or written.
    pub fn is_of_the_disk(&self) -> bool {
        matches!(
            self,
            Self::NotFreed {
                source: NotFreed::Io { .. },
                ..
            }
        )
    }
}

/// The mounted partition, which is unmounted when this value is dropped.
pub struct MountedEsp {
    device: PathBuf,
    volume: Mounted,
    #[expect(dead_code, reason = "held, not used")]
    mount: TransientMount,
    /// Dropped last, as the fields are dropped in this order.
    #[expect(dead_code, reason = "held, not used")]
    in_use: OwnedMutexGuard<()>,
}

impl MountedEsp {
    /// Mounts the partition. Blocks until it is not mounted elsewhere, so it must not be called from an async task. The modules
    /// vfat and nls_* must be loaded.
    pub fn of(device: &Path) -> Result<Self, EspError> {
        let failed = |source| EspError::Mount {
            device: device.to_owned(),
            source,
        };
        let in_use = IN_USE.clone().blocking_lock_owned();
        let filesystem = Filesystem {
            kind: "vfat",
            source: device,
            flags: MountFlags::empty(),
            options: OPTIONS,
        };
        let mount = TransientMount::new(filesystem, Path::new(TARGET)).map_err(failed)?;
        Ok(Self {
            device: device.to_owned(),
            volume: Mounted::at(TARGET),
            mount,
            in_use,
        })
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        Path::new(TARGET)
    }

    /// Reads the contents of the partition.
    pub fn state(&self) -> Result<State, EspError> {
        State::read(&self.volume).map_err(|source| EspError::Read {
            device: self.device.clone(),
            source,
        })
    }

    fn forget(&mut self, order: u32) -> Result<(), EspError> {
        let state = self.state()?;
        match state.of_order(order) {
            Some(_) => self.perform(&instar_esp::forget(&state, order)?),
            None => Ok(()),
        }
    }

    /// Removes the versions with an order above this one.
    pub fn forget_above(&mut self, order: u32) -> Result<(), EspError> {
        let orders = |state: &State| -> Vec<u32> {
            let orders = state.whole_entries().map(|entry| entry.name.order);
            orders.filter(|newer| *newer > order).collect()
        };
        for newer in orders(&self.state()?) {
            self.forget(newer)?;
        }
        Ok(())
    }

    /// Carries out a plan that needs no assets.
    pub(super) fn perform(&mut self, plan: &Plan) -> Result<(), EspError> {
        if plan.is_empty() {
            return Ok(());
        }
        let none = |_| Err(io::Error::from(io::ErrorKind::NotFound));
        Ok(self.perform_with(plan, none)?)
    }

    /// Carries out a plan with its assets.
    pub(super) fn perform_with(
        &mut self,
        plan: &Plan,
        open: impl FnMut(Asset) -> io::Result<Box<dyn Read>>,
    ) -> Result<(), Failed> {
        tracing::info!("EFI system partition:\n{plan}");
        perform(plan, &mut self.volume, open)
    }
}

/// Returns whether the machine boots from this partition, which then holds a loader. A partition without a filesystem holds none.
pub fn is_installed(device: &Path) -> Result<bool, EspError> {
    match probe_partition(device)? {
        Some(Signature::Vfat) => Ok(MountedEsp::of(device)?.state()?.has_loader),
        _ => Ok(false),
    }
}

/// Removes the boot counter from the entry of this order, after the running version was healthy.
///
/// # Errors
/// The entry leads to another version, which has not been seen healthy.
pub fn bless(device: &Path, order: u32, running: &str) -> Result<(), EspError> {
    let mut esp = MountedEsp::of(device)?;
    let state = esp.state()?;
    if let Some(entry) = state.of_order(order)
        && !entry.name.is_blessed()
        && entry.name.version.to_string() != running
    {
        return Err(EspError::OtherVersion {
            entry: entry.name.version.to_string(),
            running: running.to_owned(),
        });
    }
    esp.perform(&instar_esp::bless(&state, order)?)
}

/// Frees the clusters that interrupted and failed changes have left. Returns their size in bytes.
pub fn free_lost_clusters(device: &Path) -> Result<u64, EspError> {
    let _in_use = IN_USE.clone().blocking_lock_owned();
    let partition = open_exclusively(device)?;
    instar_esp::free_lost_clusters(&partition).map_err(|source| EspError::NotFreed {
        device: device.to_owned(),
        source,
    })
}

/// Reads the contents of the partition.
pub fn state(device: &Path) -> Result<State, EspError> {
    MountedEsp::of(device)?.state()
}

/// Reads what the installer image of a medium's version says of itself; none if the machine did not come from a medium that has it.
pub fn description(device: &Path) -> Result<Option<Vec<u8>>, EspError> {
    let esp = MountedEsp::of(device)?;
    instar_esp::description(&esp.volume).map_err(|source| EspError::Read {
        device: device.to_owned(),
        source,
    })
}

/// Removes the version of this order. A version that is gone already is no error.
pub fn forget(device: &Path, order: u32) -> Result<(), EspError> {
    MountedEsp::of(device)?.forget(order)
}

/// The entries that a machine leaves behind when it goes back to another version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEntry {
    /// The order of the booted entry, if it is known.
    pub booted: Option<u32>,
    /// The running version. After an upgrade without a reboot it is not the booted one, even if it has the same name.
    pub version: String,
    /// The order of a version that waits for its first boot. It is removed, because it would be tried if the other one failed.
    pub staged: Option<u32>,
}

/// Makes the newest version that was healthy once and is not the running one the next to boot. Returns its name.
pub fn prefer_other(device: &Path, from: &RefusedEntry) -> Result<String, EspError> {
    let mut esp = MountedEsp::of(device)?;
    let other = other_entry(&esp.state()?, from)?;
    let (order, version) = (other.name.order, other.name.version.to_string());
    if let Some(staged) = from.staged {
        esp.forget(staged)?;
    }
    let plan = instar_esp::prefer(&esp.state()?, order)?;
    esp.perform(&plan)?;
    Ok(version)
}

/// Returns the entry that [`prefer_other`] would make the next to boot.
pub fn other(device: &Path, from: &RefusedEntry) -> Result<Entry, EspError> {
    let esp = MountedEsp::of(device)?;
    other_entry(&esp.state()?, from)
}

fn other_entry(state: &State, from: &RefusedEntry) -> Result<Entry, EspError> {
    // If no entry leads to the running version, the entry that would be booted next is the one to leave.
    let running = running_entry(state, from).or(state.next_boot());
    let slot = running.map(|entry| entry.slot);
    state
        .whole_entries()
        .find(|entry| entry.name.is_blessed() && Some(entry.slot) != slot)
        .cloned()
        .ok_or(EspError::NoOther)
}

/// Returns the entry of the running version. Its name alone does not tell it: a version may have been built more than once.
fn running_entry<'a>(state: &'a State, from: &RefusedEntry) -> Option<&'a Entry> {
    let has_its_name = |entry: &&Entry| entry.name.version.to_string() == from.version;
    // An upgrade without a reboot wrote a newer entry than the booted one, and its version was kept: the entry is blessed. An entry that
    // waits for its first boot is not, nor is one that failed.
    let came_later = |entry: &&Entry| {
        entry.name.is_blessed() && Some(entry.name.order) > from.booted && has_its_name(entry)
    };
    let booted = from.booted.and_then(|order| state.of_order(order));
    state
        .whole_entries()
        .find(came_later)
        .or(booted.filter(has_its_name))
        .or_else(|| state.whole_entries().find(has_its_name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_esp::{FileDigest, Found, Slot};

    use super::*;

    /// The entries of these file names, each with its slot.
    fn state(entries: &[(&str, char)]) -> State {
        let found = entries.iter().map(|(name, slot)| {
            let name: instar_esp::EntryName = format!("instar-{name}.conf").parse().unwrap();
            let entry = Entry {
                name: name.clone(),
                slot: Slot::from_letter(*slot).unwrap(),
                uki: FileDigest::of(name.to_string().as_bytes()),
            };
            let entry = Ok(entry);
            Found { name, entry }
        });
        State {
            entries: found.collect(),
            ..State::default()
        }
    }

    /// The order of the entry that a rollback leads to; none if there is no other.
    fn other_than(
        entries: &[(&str, char)],
        booted: Option<u32>,
        running: &str,
        staged: Option<u32>,
    ) -> Option<u32> {
        let from = RefusedEntry {
            booted,
            version: running.to_owned(),
            staged,
        };
        let found = other_entry(&state(entries), &from);
        found.ok().map(|entry| entry.name.order)
    }

    #[test]
    fn a_rollback_leads_to_the_version_before_the_booted_one() {
        let both = [("2-v0.2.0", 'b'), ("1-v0.1.0", 'a')];
        assert_eq!(other_than(&both, Some(2), "v0.2.0", None), Some(1));
        assert_eq!(other_than(&both, Some(1), "v0.1.0", None), Some(2));
        // Both were built as the same version.
        let rebuilt = [("2-v0.2.0", 'b'), ("1-v0.2.0", 'a')];
        assert_eq!(other_than(&rebuilt, Some(2), "v0.2.0", None), Some(1));
        // On trial: its own entry counts, whatever else has its version.
        let on_trial = [("2-v0.2.0+2-1", 'b'), ("1-v0.2.0", 'a')];
        assert_eq!(other_than(&on_trial, Some(2), "v0.2.0", None), Some(1));
        assert_eq!(
            other_than(&[("1-v0.1.0", 'a')], Some(1), "v0.1.0", None),
            None
        );
    }

    #[test]
    fn after_an_upgrade_without_a_reboot_the_booted_version_is_another_one() {
        let newer = [("2-v0.2.0", 'b'), ("1-v0.1.0", 'a')];
        assert_eq!(other_than(&newer, Some(1), "v0.2.0", None), Some(1));
        // To a rebuild of the same version.
        let rebuilt = [("2-v0.2.0", 'b'), ("1-v0.2.0", 'a')];
        assert_eq!(other_than(&rebuilt, Some(1), "v0.2.0", None), Some(1));
        // And back to a rebuild of the booted version.
        let back = [("3-v0.1.0", 'c'), ("2-v0.2.0", 'b'), ("1-v0.1.0", 'a')];
        assert_eq!(other_than(&back, Some(1), "v0.1.0", None), Some(2));
        // Nobody knows what was booted.
        assert_eq!(other_than(&rebuilt, None, "v0.2.0", None), Some(1));
        assert_eq!(other_than(&newer, None, "v0.2.0", None), Some(1));
    }

    #[test]
    fn a_version_that_waits_for_its_boot_is_not_the_running_one() {
        for booted in [Some(2), None] {
            let staged = [("3-v0.2.0+3", 'c'), ("2-v0.2.0", 'b'), ("1-v0.1.0", 'a')];
            assert_eq!(other_than(&staged, booted, "v0.2.0", Some(3)), Some(1));
        }
    }

    #[test]
    fn a_version_that_is_on_no_disk_leaves_the_entry_that_would_be_next() {
        let mut state = state(&[("2-v0.2.0", 'b'), ("1-v0.1.0", 'a')]);
        for slot in ['a', 'b'] {
            state.ukis.insert(Slot::from_letter(slot).unwrap(), 1);
        }
        let from = RefusedEntry {
            booted: None,
            version: "v0.9.0".to_owned(),
            staged: None,
        };
        assert_eq!(other_entry(&state, &from).unwrap().name.order, 1);
    }
}
