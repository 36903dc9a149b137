//! The boot assets of an installed machine, as sequences read and change them.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::boot_loader::{self, MountedEsp, When};
use crate::machine::Machine;

/// The module that shows EFI variables.
const EFIVARFS: &str = "efivarfs";

/// Whether the machine boots from its disk, and from which entry it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installed {
    /// The EFI system partition.
    pub(super) efi: PathBuf,
    /// The order of the entry that was booted; none where this boot came another way.
    pub(super) booted: Option<u32>,
}

/// What is installed on the owned disk; none without a disk, or without a loader on it.
pub(super) async fn installed(machine: &Machine) -> anyhow::Result<Option<Installed>> {
    let Some(efi) = machine.disk.status().borrow().efi.clone() else {
        return Ok(None);
    };
    load(machine, &["vfat", "nls_cp437", "nls_ascii"]).await?;
    let device = efi.clone();
    let has_loader = blocking(move || Ok(boot_loader::is_installed(&device)?)).await?;
    if !has_loader {
        return Ok(None);
    }
    let booted = booted(machine).await?;
    Ok(Some(Installed { efi, booted }))
}

/// The order of the entry that was booted, where the loader came from the owned disk.
async fn booted(machine: &Machine) -> anyhow::Result<Option<u32>> {
    if !boot_loader::is_uefi() {
        return Ok(None);
    }
    load(machine, &[EFIVARFS]).await?;
    let efi = machine.disk.efi_partition().await?;
    blocking(move || {
        if boot_loader::loader_partition()? != Some(efi.partition.guid) {
            return Ok(None);
        }
        Ok(boot_loader::selected_entry()?.map(|entry| entry.order))
    })
    .await
}

/// Whether the loader that started this machine came from a partition of a disk.
pub(super) async fn came_from_a_disk(machine: &Machine) -> anyhow::Result<bool> {
    if !boot_loader::is_uefi() {
        return Ok(false);
    }
    load(machine, &[EFIVARFS]).await?;
    blocking(|| Ok(boot_loader::loader_partition()?.is_some())).await
}

/// Takes the counter off the entry of this order, and has the firmware lead to the loader often enough.
pub(super) async fn bless(
    machine: &Machine,
    installed: &Installed,
    order: u32,
) -> anyhow::Result<()> {
    let efi = installed.efi.clone();
    blocking(move || Ok(boot_loader::bless(&efi, order)?)).await?;
    keep_boot_entries(machine, When::Missing).await
}

/// Removes the version of this order.
pub(super) async fn forget(installed: &Installed, order: u32) -> anyhow::Result<()> {
    let efi = installed.efi.clone();
    blocking(move || Ok(boot_loader::forget(&efi, order)?)).await
}

/// Has the other version booted next that was healthy once; gives its name.
pub(super) async fn prefer_other(installed: &Installed) -> anyhow::Result<String> {
    let efi = installed.efi.clone();
    let running = installed.booted;
    blocking(move || Ok(boot_loader::prefer_other(&efi, running)?)).await
}

/// Writes the firmware's entries for the loader where they are missing.
pub(super) async fn keep_boot_entries(machine: &Machine, when: When) -> anyhow::Result<()> {
    if !boot_loader::is_uefi() {
        return Ok(());
    }
    load(machine, &[EFIVARFS]).await?;
    let partition = machine.disk.efi_partition().await?;
    let written = blocking(move || Ok(boot_loader::keep_boot_entries(&partition, when)?)).await?;
    if written {
        tracing::info!("the firmware has its entries for the boot loader");
    }
    Ok(())
}

/// Mounts the EFI system partition for the installer.
pub(super) async fn mount(installed: &Installed) -> anyhow::Result<MountedEsp> {
    let efi = installed.efi.clone();
    blocking(move || Ok(MountedEsp::of(&efi)?)).await
}

async fn load(machine: &Machine, modules: &[&str]) -> anyhow::Result<()> {
    let drivers = machine.drivers()?;
    for name in modules {
        drivers
            .load_named(name)
            .await
            .with_context(|| format!("load the module {name}"))?;
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("the work on the boot assets was interrupted")?
}
