//! The boot assets of an installed machine: functions by which sequences read and change them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use instar_esp::paths::LOADER;
use instar_esp::{Entry, EntryName};
use uuid::Uuid;

use super::load_modules::{load_disk_drivers, load_modules};
use crate::base::blocking_io::{self, ANSWER};
use crate::boot_loader::{
    self, Booted, KeptVersion, Medium, MountedEsp, RefusedEntry, Revocations, Unbootable, When,
};
use crate::machine::Machine;
use crate::status;
use crate::store::Problem;
use crate::upgrade::RunningSystem;

/// The kernel modules for the EFI system partition's filesystem.
const FILESYSTEM: [&str; 3] = ["vfat", "nls_cp437", "nls_ascii"];
/// Time limit for copying 100 MB from a CD or a stick to a stick.
const INSTALL: Duration = Duration::from_secs(30 * 60);
/// The kernel module that gives access to EFI variables.
const EFIVARFS: &str = "efivarfs";
/// The problem of a machine whose firmware has no entries for the loader, and takes none.
const BOOT_ORDER: &str = "boot order";

/// A machine that boots from its disk, and the entry that it was booted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sequences) struct Installed {
    /// The EFI system partition.
    pub(in crate::sequences) efi: PathBuf,
    /// The order of the booted entry; None if this boot came another way.
    pub(in crate::sequences) booted: Option<u32>,
}

/// Returns the installation on the owned disk; None without a disk, or without a loader on it.
pub(in crate::sequences) async fn installed(
    machine: &Machine,
) -> anyhow::Result<Option<Installed>> {
    let Some(efi) = machine.disk.status().borrow().efi.clone() else {
        return Ok(None);
    };
    load_modules(machine, &FILESYSTEM).await?;
    let device = efi.clone();
    let has_loader = blocking(move || Ok(boot_loader::is_installed(&device)?)).await?;
    if !has_loader {
        return Ok(None);
    }
    let booted = booted(machine).await?;
    Ok(Some(Installed { efi, booted }))
}

/// Whether a version can be kept for the next boot: the machine boots from its disk, and has STATE for the record.
pub(in crate::sequences) async fn keeps_a_version(machine: &Machine) -> anyhow::Result<bool> {
    let installed = installed(machine).await?;
    Ok(installed.is_some() && machine.disk.state().is_some())
}

/// Whether the machine boots from its disk.
pub async fn is_installed(machine: &Machine) -> anyhow::Result<bool> {
    Ok(installed(machine).await?.is_some())
}

/// Returns the order of the booted entry, if it is one of the owned disk's.
async fn booted(machine: &Machine) -> anyhow::Result<Option<u32>> {
    let Some(booted) = started_by(machine).await? else {
        return Ok(None);
    };
    if let Some(partition) = booted.partition
        && partition != machine.disk.efi_partition().await?.partition.guid
    {
        return Ok(None);
    }
    Ok(booted.entry.map(|entry| entry.order))
}

/// Returns the entry that this machine was started from, if its tries are counted: its version is on trial. Needs no disk, because a
/// version that fails may not find one.
pub(in crate::sequences) async fn on_trial(machine: &Machine) -> anyhow::Result<Option<EntryName>> {
    let entry = started_by(machine).await?.and_then(|booted| booted.entry);
    Ok(entry.filter(|entry| !entry.is_blessed()))
}

/// Whether this machine was started from a disk.
pub(in crate::sequences) async fn came_from_a_disk(machine: &Machine) -> anyhow::Result<bool> {
    Ok(started_by(machine).await?.is_some())
}

/// Returns the EFI system partition that this machine was started from; None if it did not come from a disk, or nobody can tell which.
pub(in crate::sequences) async fn started_from(machine: &Machine) -> anyhow::Result<Option<Uuid>> {
    if boot_loader::is_uefi() {
        load_modules(machine, &[EFIVARFS]).await?;
    }
    blocking(|| Ok(boot_loader::started_from()?)).await
}

async fn started_by(machine: &Machine) -> anyhow::Result<Option<Booted>> {
    if boot_loader::is_uefi() {
        load_modules(machine, &[EFIVARFS]).await?;
    }
    blocking(|| Ok(boot_loader::booted()?)).await
}

/// Loads the kernel that would be booted next, for a reboot past the firmware; returns its boot entry.
pub(in crate::sequences) async fn load_next(installed: &Installed) -> anyhow::Result<EntryName> {
    let efi = installed.efi.clone();
    blocking(move || Ok(boot_loader::load_next(&efi)?)).await
}

/// Removes the counter from the entry of this order, which must be the running version's, and makes the firmware start the loader if its
/// boot entries are missing.
///
/// # Errors
/// The entry leads to another version, which has not proved to be healthy.
pub(in crate::sequences) async fn bless(
    machine: &Machine,
    installed: &Installed,
    order: u32,
) -> anyhow::Result<()> {
    let (efi, running) = (installed.efi.clone(), machine.running.version.clone());
    blocking(move || Ok(boot_loader::bless(&efi, order, &running)?)).await?;
    keep_boot_entries(machine, When::Missing).await;
    Ok(())
}

/// Returns the entry of this order with its current tries; None if there is no such version.
pub(in crate::sequences) async fn entry(
    installed: &Installed,
    order: u32,
) -> anyhow::Result<Option<EntryName>> {
    let efi = installed.efi.clone();
    let state = blocking(move || Ok(boot_loader::state(&efi)?)).await?;
    Ok(state.of_order(order).map(|entry| entry.name.clone()))
}

/// Returns the BLAKE3 of the UKI that the entry of this order starts; None if there is no such version.
pub(in crate::sequences) async fn uki(
    installed: &Installed,
    order: u32,
) -> anyhow::Result<Option<String>> {
    let efi = installed.efi.clone();
    let state = blocking(move || Ok(boot_loader::state(&efi)?)).await?;
    Ok(state
        .of_order(order)
        .map(|entry| entry.uki.blake3.to_string()))
}

/// Returns what the installer image of a medium's version says of itself; None if the machine did not come from a medium that has it.
pub(in crate::sequences) async fn description(
    installed: &Installed,
) -> anyhow::Result<Option<Vec<u8>>> {
    let efi = installed.efi.clone();
    blocking(move || Ok(boot_loader::description(&efi)?)).await
}

/// Removes the version of this order; no error if it is gone already.
pub(in crate::sequences) async fn forget(installed: &Installed, order: u32) -> anyhow::Result<()> {
    let efi = installed.efi.clone();
    blocking(move || Ok(boot_loader::forget(&efi, order)?)).await
}

/// Returns the entry of the other version that was healthy once.
pub(in crate::sequences) async fn other(
    running: &RunningSystem,
    installed: &Installed,
) -> anyhow::Result<Entry> {
    let efi = installed.efi.clone();
    let from = RefusedEntry {
        booted: installed.booted,
        version: running.version.clone(),
        staged: None,
    };
    blocking(move || Ok(boot_loader::other(&efi, &from)?)).await
}

/// Makes the other version that was healthy once the next to boot; returns its name. The version of the order `staged` is removed.
pub(in crate::sequences) async fn prefer_other(
    running: &RunningSystem,
    installed: &Installed,
    staged: Option<u32>,
) -> anyhow::Result<String> {
    let efi = installed.efi.clone();
    let from = RefusedEntry {
        booted: installed.booted,
        version: running.version.clone(),
        staged,
    };
    blocking(move || Ok(boot_loader::prefer_other(&efi, &from)?)).await
}

/// Returns the versions on the disk that a boot may take.
pub(in crate::sequences) async fn kept_versions(
    installed: &Installed,
) -> anyhow::Result<Vec<KeptVersion>> {
    let efi = installed.efi.clone();
    blocking(move || Ok(boot_loader::kept_versions(&efi)?)).await
}

/// Reads the UKI of the version of this order, slowly; returns why it would not start, if it would not.
pub(in crate::sequences) async fn check_version(
    machine: &Machine,
    installed: &Installed,
    order: u32,
) -> anyhow::Result<Option<Unbootable>> {
    let revocations = revocations(machine).await.unwrap_or_else(|error| {
        tracing::warn!("nobody can tell what the firmware has revoked: {error:#}");
        None
    });
    let efi = installed.efi.clone();
    blocking(move || {
        let found = boot_loader::check_version(&efi, order, revocations.as_ref());
        Ok(found?)
    })
    .await
}

/// Returns what the firmware has revoked; None if it checks nothing.
async fn revocations(machine: &Machine) -> anyhow::Result<Option<Revocations>> {
    if !boot_loader::is_uefi() {
        return Ok(None);
    }
    load_modules(machine, &[EFIVARFS]).await?;
    blocking(|| Ok(Revocations::of_this_machine()?)).await
}

/// Writes the firmware's boot entries for the loader if they are missing. Firmware may refuse that, because its memory is full or locked. The
/// disk starts all the same, by the path that firmware looks for on every disk, so this is a problem to tell, and fails nothing.
pub(in crate::sequences) async fn keep_boot_entries(machine: &Machine, when: When) {
    let written = write_boot_entries(machine, when).await;
    tell_boot_entries(machine, written);
}

fn tell_boot_entries(machine: &Machine, written: anyhow::Result<()>) {
    let Err(error) = written else {
        machine.store.remove::<Problem>(BOOT_ORDER);
        return;
    };
    let reason = format!(
        "the firmware does not take its entries for the boot loader: {error:#}. The disk starts only if the firmware looks for {LOADER} on it: put the disk first in the firmware's setup, or make room for variables there"
    );
    tracing::error!("{reason}");
    status::note_problem(machine, BOOT_ORDER, &reason);
}

async fn write_boot_entries(machine: &Machine, when: When) -> anyhow::Result<()> {
    if !boot_loader::is_uefi() {
        return Ok(());
    }
    load_modules(machine, &[EFIVARFS]).await?;
    let partition = machine.disk.efi_partition().await?;
    let written = blocking(move || Ok(boot_loader::keep_boot_entries(&partition, when)?)).await?;
    if written {
        tracing::info!("the firmware has its entries for the boot loader");
    }
    Ok(())
}

/// Looks for a disk or CD with the running version.
pub(in crate::sequences) async fn find_medium(machine: &Machine) -> anyhow::Result<Option<Medium>> {
    load_disk_drivers(machine).await?;
    load_modules(machine, &FILESYSTEM).await?;
    if boot_loader::is_uefi() {
        load_modules(machine, &[EFIVARFS]).await?;
    }
    let version = machine.running.version.clone();
    blocking(move || Ok(Medium::find(Path::new("/sys"), &version)?)).await
}

/// Copies the medium's boot assets to this empty EFI system partition.
pub(in crate::sequences) async fn install_from(medium: Medium, efi: PathBuf) -> anyhow::Result<()> {
    Ok(blocking_io::within(INSTALL, move || medium.install_to(&efi)).await??)
}

/// Makes the firmware start the loader that came with an upgrade once, if one came.
pub(in crate::sequences) async fn try_next_loader(machine: &Machine) -> anyhow::Result<()> {
    let Some(installed) = installed(machine).await? else {
        return Ok(());
    };
    let state = blocking(move || Ok(boot_loader::state(&installed.efi)?)).await?;
    if !state.has_new_loader || !boot_loader::is_uefi() {
        return Ok(());
    }
    load_modules(machine, &[EFIVARFS]).await?;
    let partition = machine.disk.efi_partition().await?;
    blocking(move || Ok(boot_loader::start_next_loader_once(&partition)?)).await?;
    tracing::info!("the firmware tries another boot loader at the next boot");
    Ok(())
}

/// Replaces the old loader by the one that came with an upgrade, if that one has started this machine.
pub(in crate::sequences) async fn settle_next_loader(machine: &Machine) -> anyhow::Result<()> {
    let Some(installed) = installed(machine).await? else {
        return Ok(());
    };
    let efi = installed.efi;
    let state = blocking(move || Ok((boot_loader::state(&efi)?, efi))).await?;
    let (state, efi) = state;
    if !state.has_new_loader || !boot_loader::is_uefi() {
        return Ok(());
    }
    load_modules(machine, &[EFIVARFS]).await?;
    let is_good = blocking(|| Ok(boot_loader::was_started_by_next_loader()?)).await?;
    if is_good {
        blocking(move || Ok(boot_loader::take_next_loader(&efi)?)).await?;
        tracing::info!("the new boot loader has started this machine, and stays");
    } else {
        // The next change of the partition removes the new loader.
        tracing::warn!("the new boot loader has not started this machine; the old one stays");
    }
    blocking(|| Ok(boot_loader::forget_next_loader()?)).await
}

/// The EFI system partition, mounted for the installer.
pub(in crate::sequences) struct ForInstaller {
    mounted: MountedEsp,
    /// The highest order of an entry before the installer runs.
    highest: u32,
}

impl ForInstaller {
    /// Mounts the partition, with as much free room as possible.
    pub(in crate::sequences) async fn mount(installed: &Installed) -> anyhow::Result<Self> {
        let efi = installed.efi.clone();
        blocking(move || {
            match boot_loader::free_lost_clusters(&efi) {
                Ok(0) => {}
                Ok(bytes) => tracing::info!(
                    "EFI system partition: {bytes} bytes were lost to changes that did not end, and are free again"
                ),
                Err(error) if error.is_of_the_disk() => return Err(error.into()),
                // The free room may be enough as it is.
                Err(error) => tracing::warn!("{:#}", anyhow::Error::from(error)),
            }
            let mounted = MountedEsp::of(&efi)?;
            let highest = mounted.state()?.highest_order();
            Ok(Self { mounted, highest })
        })
        .await
    }

    /// Returns the mount point.
    pub(in crate::sequences) fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Removes the entries that the installer wrote, so that no boot tries them.
    pub(in crate::sequences) async fn take_back(self) -> anyhow::Result<()> {
        let Self {
            mut mounted,
            highest,
        } = self;
        blocking(move || Ok(mounted.forget_above(highest)?)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let done = blocking_io::within(ANSWER, work).await;
    done.context("the work on the boot assets")?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sequences::image_pins::machine_for_tests::unbooted;

    #[tokio::test]
    async fn firmware_without_room_for_its_entries_is_a_problem_until_it_has_some() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let full = anyhow::anyhow!("No space left on device");
        tell_boot_entries(&machine, Err(full));
        let problem = machine.store.get::<Problem>(BOOT_ORDER).unwrap();
        for said in ["No space left on device", "EFI/BOOT/BOOTX64.EFI", "setup"] {
            assert!(problem.reason.contains(said), "{}", problem.reason);
        }
        tell_boot_entries(&machine, Ok(()));
        assert!(machine.store.get::<Problem>(BOOT_ORDER).is_none());
    }
}
