//! The EFI system partition, mounted for as long as it is read or changed.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use instar_esp::{Asset, Entry, Failed, Mounted, NotFreed, Plan, Refused, State, perform};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::disk::{ApplyError, ProbeError, Signature, open_exclusively, probe_partition};
use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;

/// How it is mounted. vfat would turn read-only when it removes a file of which a power cut has left half, and whatever comes
/// after that in a plan would fail; what a plan writes is read back, so that nothing has to be feared from going on.
const OPTIONS: &str = "umask=0077,codepage=437,iocharset=ascii,shortname=mixed,errors=continue";
/// Where it is mounted; in memory, and nobody else's.
const TARGET: &str = "/run/instar/efi";

/// Whoever has it mounted. Reads asked for over the API come while a version is blessed, and a second mount in the same place fails.
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
    /// Nothing to roll back to.
    #[error("there is no other version on this machine that was healthy once")]
    NoOther,
}

impl EspError {
    /// Whether the disk could not be read or written, when lost clusters were to be freed.
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

/// The mounted partition; dropping it unmounts.
pub struct MountedEsp {
    device: PathBuf,
    volume: Mounted,
    #[expect(dead_code, reason = "held, not used")]
    mount: TransientMount,
    /// Let go after that, the fields being dropped in this order.
    #[expect(dead_code, reason = "held, not used")]
    in_use: OwnedMutexGuard<()>,
}

impl MountedEsp {
    /// Mounts it, when nobody else has it mounted any more: so not from an async task. The modules vfat and nls_* must be loaded.
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

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        Path::new(TARGET)
    }

    /// What is on it.
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

    /// Removes the versions whose orders are above this one.
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

    /// Carries out a plan with what it needs.
    pub(super) fn perform_with(
        &mut self,
        plan: &Plan,
        open: impl FnMut(Asset) -> io::Result<Box<dyn Read>>,
    ) -> Result<(), Failed> {
        tracing::info!("EFI system partition:\n{plan}");
        perform(plan, &mut self.volume, open)
    }
}

/// Whether the machine boots from this partition: it has a loader. Before there is a filesystem it has none.
pub fn is_installed(device: &Path) -> Result<bool, EspError> {
    match probe_partition(device)? {
        Some(Signature::Vfat) => Ok(MountedEsp::of(device)?.state()?.has_loader),
        _ => Ok(false),
    }
}

/// Takes the counter off the entry of this order, which is that of the version that runs: it was healthy.
///
/// # Errors
/// The entry leads to another version: nobody has seen that one healthy.
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

/// Gives back the room that interrupted and failed changes have taken from it, in bytes.
pub fn free_lost_clusters(device: &Path) -> Result<u64, EspError> {
    let _in_use = IN_USE.clone().blocking_lock_owned();
    let partition = open_exclusively(device)?;
    instar_esp::free_lost_clusters(&partition).map_err(|source| EspError::NotFreed {
        device: device.to_owned(),
        source,
    })
}

/// What is on the partition.
pub fn state(device: &Path) -> Result<State, EspError> {
    MountedEsp::of(device)?.state()
}

/// Removes the version of this order; one that is gone is fine.
pub fn forget(device: &Path, order: u32) -> Result<(), EspError> {
    MountedEsp::of(device)?.forget(order)
}

/// What a machine turns away from when it goes back to another version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEntry {
    /// The order of the entry that was booted, where it is known.
    pub booted: Option<u32>,
    /// The version that runs: another one than was booted, after an upgrade without a reboot.
    pub version: String,
    /// The order of a version that waits for its first boot. It goes: it would be tried when the other one fails.
    pub staged: Option<u32>,
}

/// Has the newest version booted next that was healthy once and is not the one that runs; gives its name.
pub fn prefer_other(device: &Path, from: &RefusedEntry) -> Result<String, EspError> {
    let mut esp = MountedEsp::of(device)?;
    let state = esp.state()?;
    let is_running = |entry: &&Entry| entry.name.version.to_string() == from.version;
    let booted = from.booted.and_then(|order| state.of_order(order));
    let running = booted
        .filter(is_running)
        .or_else(|| state.whole_entries().find(is_running))
        // Where this boot came another way, the one that would be booted is what is turned away from.
        .or(state.next_boot());
    let slot = running.map(|entry| entry.slot);
    let other = state
        .whole_entries()
        .find(|entry| entry.name.is_blessed() && Some(entry.slot) != slot)
        .ok_or(EspError::NoOther)?;
    let (order, version) = (other.name.order, other.name.version.to_string());
    if let Some(staged) = from.staged {
        esp.forget(staged)?;
    }
    let plan = instar_esp::prefer(&esp.state()?, order)?;
    esp.perform(&plan)?;
    Ok(version)
}
