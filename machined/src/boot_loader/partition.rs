//! The EFI system partition, mounted for as long as it is read or changed.

use std::io;
use std::path::{Path, PathBuf};

use instar_esp::{Failed, Mounted, Plan, Refused, State, perform};
use sys_mount::{Mount, MountFlags, UnmountDrop, UnmountFlags};

use crate::disk::{ProbeError, Signature, probe_partition};

/// How it is mounted. vfat would turn read-only when it removes a file of which a power cut has left half, and whatever comes
/// after that in a plan would fail; what a plan writes is read back, so that nothing has to be feared from going on.
const OPTIONS: &str = "umask=0077,codepage=437,iocharset=ascii,shortname=mixed,errors=continue";
/// Where it is mounted; in memory, and nobody else's.
const TARGET: &str = "/run/instar/efi";

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
    Refused(#[from] Refused),
    #[error(transparent)]
    Write(#[from] Failed),
    /// Nothing to roll back to.
    #[error("there is no other version on this machine that was healthy once")]
    NoOther,
}

/// The mounted partition; dropping it unmounts.
pub struct MountedEsp {
    device: PathBuf,
    volume: Mounted,
    #[expect(dead_code, reason = "held, not used")]
    unmount: UnmountDrop<Mount>,
}

impl MountedEsp {
    /// Mounts it. The modules vfat and nls_* must be loaded.
    pub fn of(device: &Path) -> Result<Self, EspError> {
        let failed = |source| EspError::Mount {
            device: device.to_owned(),
            source,
        };
        std::fs::create_dir_all(TARGET).map_err(failed)?;
        let mount = Mount::builder()
            .fstype("vfat")
            .flags(MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC)
            .data(OPTIONS)
            .mount_autodrop(device, TARGET, UnmountFlags::empty())
            .map_err(failed)?;
        Ok(Self {
            device: device.to_owned(),
            volume: Mounted::at(TARGET),
            unmount: mount,
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

    /// Carries out a plan that needs no assets.
    fn perform(&mut self, plan: &Plan) -> Result<(), EspError> {
        if plan.is_empty() {
            return Ok(());
        }
        tracing::info!("EFI system partition:\n{plan}");
        let none = |_| Err(io::Error::from(io::ErrorKind::NotFound));
        Ok(perform(plan, &mut self.volume, none)?)
    }
}

/// Whether the machine boots from this partition: it has a loader. Before there is a filesystem it has none.
pub fn is_installed(device: &Path) -> Result<bool, EspError> {
    match probe_partition(device)? {
        Some(Signature::Vfat) => Ok(MountedEsp::of(device)?.state()?.has_loader),
        _ => Ok(false),
    }
}

/// Takes the counter off the entry of this order: it was healthy.
pub fn bless(device: &Path, order: u32) -> Result<(), EspError> {
    let mut esp = MountedEsp::of(device)?;
    let plan = instar_esp::bless(&esp.state()?, order)?;
    esp.perform(&plan)
}

/// Removes the version of this order.
pub fn forget(device: &Path, order: u32) -> Result<(), EspError> {
    let mut esp = MountedEsp::of(device)?;
    let plan = instar_esp::forget(&esp.state()?, order)?;
    esp.perform(&plan)
}

/// Has the newest version booted next that was healthy once and is not the one of the order `running`; gives its version.
pub fn prefer_other(device: &Path, running: Option<u32>) -> Result<String, EspError> {
    let mut esp = MountedEsp::of(device)?;
    let state = esp.state()?;
    // Where this boot came another way, the one that would be booted is what is turned away from.
    let running = running
        .and_then(|order| state.of_order(order))
        .or(state.next_boot());
    let slot = running.map(|entry| entry.slot);
    let other = state
        .whole_entries()
        .find(|entry| entry.name.is_blessed() && Some(entry.slot) != slot)
        .ok_or(EspError::NoOther)?;
    let plan = instar_esp::prefer(&state, other.name.order)?;
    let version = other.name.version.to_string();
    esp.perform(&plan)?;
    Ok(version)
}
