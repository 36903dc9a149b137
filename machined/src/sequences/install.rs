//! The installation: a machine whose config names an installer's image, and that does not boot from its disk yet, puts that
//! version on it.

use std::sync::Arc;

use anyhow::Context as _;

use super::boot_assets::{self, Installed};
use super::disk;
use super::ending::leave;
use super::overlay::load_overlay;
use super::upgrade::installer_limits;
use crate::boot_loader::When;
use crate::config::InstallWish;
use crate::containers::ImageReference;
use crate::init_link::End;
use crate::intent;
use crate::machine::Machine;
use crate::resources::MachineStage;
use crate::status;
use crate::upgrade::{Candidate, EspForInstaller, Resources, check, installer};

/// Installs where that is wanted and was not done. Does not return when the config asks for a reboot into what was installed.
pub(super) async fn install_if_missing(machine: Arc<Machine>) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    let Some(InstallWish {
        image: Some(image),
        reboot,
        ..
    }) = &configured.config.install
    else {
        return Ok(());
    };
    if boot_assets::installed(&machine).await?.is_some() {
        return Ok(());
    }
    machine.enter(MachineStage::Installing);
    let reference: ImageReference = image
        .to_string()
        .parse()
        .context("the installer's image in the config")?;
    tracing::info!("installing {reference}");
    let installed = install(&machine, &reference).await;
    if let Err(error) = &installed {
        // The version that runs from memory is more than none; and the image may be meant for another system.
        let reason = format!("{reference} is not installed: {error:#}");
        tracing::error!("{reason}");
        status::note_problem(&machine, "install", &reason);
    }
    if installed.is_err() || !*reboot {
        machine.enter(MachineStage::Booting);
        return Ok(());
    }
    tracing::info!("installed; the machine reboots into it");
    machine.enter(MachineStage::Rebooting);
    disk::unmount(&machine).await?;
    leave(&machine, End::Reboot).await;
    Ok(())
}

async fn install(machine: &Machine, reference: &ImageReference) -> anyhow::Result<()> {
    let puller = intent::puller(machine.config().as_deref())?;
    let resolved = puller.resolve(reference).await?;
    let candidate = Candidate::from_labels(resolved.labels())?;
    let limits = installer_limits(&candidate);
    check(
        &candidate,
        &machine.running,
        Resources::now()?,
        limits.unpacked_bytes,
    )?;
    load_overlay(machine).await?;
    let image = puller.pull(&resolved, &machine.images, &limits).await?;
    // What an interrupted installation left is not worth keeping: without a loader nothing boots from it.
    let efi = machine.disk.format_efi().await?;
    let new = Installed { efi, booted: None };
    let mounted = boot_assets::mount(&new).await?;
    let esp = EspForInstaller {
        folder: mounted.path().to_owned(),
        running: None,
    };
    installer::run(machine, &image, &candidate, Some(&esp)).await?;
    drop(mounted);
    machine.images.remove(image.digest()).await?;
    boot_assets::keep_boot_entries(machine, When::Installing).await
}
