//! The installation: a machine that does not boot from its disk yet puts a version on it, either from the installer image that its config
//! names, or the running version, if the medium with it is present.
//!
//! An installer image is judged as for an upgrade: by its tag, and by the signature of its root filesystem. The floor and the versions that a
//! release may follow do not count, as nothing was committed on this machine yet.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use super::steps::admit;
use super::steps::boot_assets::{self, Installed};
use super::steps::disk;
use super::steps::late_disk;
use super::steps::leave::leave;
use super::steps::needs_uefi::refuse_without_uefi;
use super::steps::offer::{Offer, offer};
use super::steps::overlay::load_overlay;
use super::upgrade::{committed, installer_limits, remove_unless_needed};
use crate::boot_loader::{self, Medium, When};
use crate::config::InstallSpec;
use crate::disk::DiskSpec;
use crate::disk::Users;
use crate::init_link::End;
use crate::intent;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation, OperationLock};
use crate::status;
use crate::store::MachineStage;
use crate::upgrade::{
    Candidate, EspForInstaller, Evidence, ProgressSink, ReleaseOrigin, Resources, Unpacked,
    WrongTag, check, created, installer,
};
use crate::values::ImageReference;

/// The source of an installation.
enum Origin {
    /// An installer image in a registry.
    Image(ImageReference),
    /// The running version, from its medium.
    Medium(Medium),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(reference) => reference.fmt(f),
            Self::Medium(medium) => write!(f, "the version on {}", medium.device().display()),
        }
    }
}

/// Installs a version if one is wanted and none is installed. Does not return if a reboot into the installed version follows.
pub(super) async fn install_if_missing(machine: Arc<Machine>) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    let (image, reboot) = match &configured.config.install {
        Some(InstallSpec { image, reboot, .. }) => (image.as_ref(), *reboot),
        None if intent::disk_on_command_line().is_some() => (None, true),
        None => return Ok(()),
    };
    if let Some(installed) = boot_assets::installed(&machine).await? {
        // The power may have gone between the loader and the firmware's entries: without these the machine comes from elsewhere for ever.
        if installed.booted.is_none() {
            boot_assets::keep_boot_entries(&machine, When::Missing).await;
        }
        return Ok(());
    }
    if let Err(refused) = refuse_without_uefi(&configured.config) {
        tracing::error!("nothing is installed: {refused:#}");
        status::note_problem(&machine, "install", &format!("{refused:#}"));
        return Ok(());
    }
    let origin = match image {
        Some(image) => Origin::Image(image.clone()),
        None => match find_medium(&machine).await? {
            Some(medium) => Origin::Medium(medium),
            None => return Ok(()),
        },
    };
    install_and_reboot(&machine, origin, reboot).await
}

/// Installs the running version on the disk that the kernel's command line names, on a machine without a config: a config will reach the
/// installed machine. Does not return if the installation succeeded.
pub(super) async fn install_without_config(machine: &Arc<Machine>) {
    let Some(spec) = intent::disk_on_command_line() else {
        return;
    };
    if let Err(error) = try_without_config(machine, spec).await {
        let reason = format!("nothing is installed: {error:#}");
        tracing::error!("{reason}");
        status::note_problem(machine, "install", &reason);
    }
}

async fn try_without_config(machine: &Arc<Machine>, spec: DiskSpec) -> anyhow::Result<()> {
    if !boot_loader::is_uefi() {
        return Err(InstallError::NoUefi.into());
    }
    disk::find_state(machine).await?;
    if boot_assets::installed(machine).await?.is_some() {
        return Ok(());
    }
    let medium = find_medium(machine)
        .await?
        .context("no disk or CD carries the version that runs")?;
    late_disk::mount(machine, &spec).await?;
    install_and_reboot(machine, Origin::Medium(medium), true).await?;
    // The installation failed: a config that comes later finds the disk as it was.
    Ok(disk::unmount(machine, Users::MustBeGone).await?)
}

/// Finds the medium with the running version. Only UEFI starts an installed disk, so a machine without UEFI finds none.
async fn find_medium(machine: &Machine) -> anyhow::Result<Option<Medium>> {
    if !boot_loader::is_uefi() {
        tracing::info!(
            "nothing is installed: this machine was not started by UEFI, which starts an installed disk"
        );
        return Ok(None);
    }
    late_disk::own_disk(machine).await?;
    let medium = boot_assets::find_medium(machine).await?;
    if medium.is_none() {
        let version = &machine.running.version;
        tracing::info!(
            "nothing is installed: no image is named, and no disk or CD that this kernel has drivers for carries {version}"
        );
    }
    Ok(medium)
}

async fn install_and_reboot(
    machine: &Arc<Machine>,
    origin: Origin,
    reboot: bool,
) -> anyhow::Result<()> {
    machine.enter(MachineStage::Installing);
    tracing::info!("installing {origin}");
    let name = origin.to_string();
    let installed = match origin {
        Origin::Image(reference) => install(machine, &reference, &ProgressSink::silent()).await,
        Origin::Medium(medium) => copy(machine, medium).await,
    };
    if let Err(error) = &installed {
        // The version that runs from memory is better than none; and the image may be meant for another system.
        let reason = format!("{name} is not installed: {error:#}");
        tracing::error!("{reason}");
        status::note_problem(machine, "install", &reason);
    }
    if installed.is_err() || !reboot {
        machine.enter(MachineStage::Booting);
        return Ok(());
    }
    tracing::info!("installed; the machine reboots into it");
    machine.enter(MachineStage::Rebooting);
    disk::unmount(machine, Users::MustBeGone).await?;
    leave(machine, End::Reboot).await;
    Ok(())
}

/// Copies the medium's content to the owned disk, unchanged.
async fn copy(machine: &Machine, medium: Medium) -> anyhow::Result<()> {
    let efi = machine.disk.format_efi().await?;
    boot_assets::install_from(medium, efi).await?;
    boot_assets::keep_boot_entries(machine, When::Installing).await;
    Ok(())
}

/// Why an installation was refused.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A version is already installed.
    #[error("this machine boots from its disk already; upgrade it instead")]
    Installed,
    /// The machine owns no disk.
    #[error(
        "this machine owns no disk: name one in machine.install.disk or UnattendedInstallConfig, and apply that"
    )]
    NoDisk,
    /// The caller named another disk.
    #[error("the machine config gives this machine the disk {0}, and no other one is written")]
    OtherDisk(String),
    /// An installed disk would not start.
    #[error("this machine was not started by UEFI, which alone starts an installed disk")]
    NoUefi,
    /// Another operation is running.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// It is unknown whether a version is installed.
    #[error(transparent)]
    Machine(anyhow::Error),
}

/// Checks whether a caller's installation is possible; returns the lock for it. `disk`: the disk that the caller names, or empty.
pub async fn may_install(machine: &Machine, disk: &str) -> Result<OperationLock, InstallError> {
    let lock = machine.lock_operation(Operation::Install)?;
    let installed = boot_assets::installed(machine).await;
    if installed.map_err(InstallError::Machine)?.is_some() {
        return Err(InstallError::Installed);
    }
    let owned = {
        let status = machine.disk.status();
        let status = status.borrow();
        status.disk.clone().filter(|_| status.efi.is_some())
    };
    let owned = owned.ok_or(InstallError::NoDisk)?;
    if !disk.is_empty() && Path::new(disk) != owned {
        return Err(InstallError::OtherDisk(owned.display().to_string()));
    }
    match boot_loader::is_uefi() {
        true => Ok(lock),
        false => Err(InstallError::NoUefi),
    }
}

/// Installs the version of an installer image on the machine's disk, while the machine works on. The next boot starts it. A more urgent
/// operation may interrupt the download; a write to the disk that has begun is completed.
pub async fn install_image(
    machine: &Machine,
    lock: OperationLock,
    image: &str,
    progress: &ProgressSink,
) -> anyhow::Result<()> {
    let reference = image.parse().context("the installer's image")?;
    progress.say(format!("pulling {image}"));
    let downloaded = lock.interruptible(download(machine, &reference)).await??;
    write(machine, downloaded, progress).await
}

async fn install(
    machine: &Machine,
    reference: &ImageReference,
    progress: &ProgressSink,
) -> anyhow::Result<()> {
    let downloaded = download(machine, reference).await?;
    write(machine, downloaded, progress).await
}

/// A downloaded installer that fits this machine. The disk is unchanged.
struct Downloaded {
    image: Unpacked,
    candidate: Candidate,
    origin: ReleaseOrigin,
    evidence: Evidence,
}

async fn download(machine: &Machine, reference: &ImageReference) -> anyhow::Result<Downloaded> {
    let puller = intent::puller(machine.config().as_deref());
    let offer = offer(machine, &puller, reference).await?;
    let (digest, config) = (offer.digest(), offer.config());
    let candidate = Candidate::from_labels(&config.labels)?;
    if let Some(wrong) = WrongTag::of(&candidate.version, reference.tag()) {
        return Err(wrong.into());
    }
    admit::check_offer(machine, &candidate, config).await?;
    let origin = ReleaseOrigin {
        version: candidate.version.to_string(),
        image: reference.to_string(),
        digest,
        created: created(config.created.as_deref()),
    };
    let evidence = offer.evidence(&puller).await;
    let limits = installer_limits(&candidate);
    let resources = Resources::now()?;
    let plan = check(
        &candidate,
        &machine.running,
        resources,
        limits.unpacked_bytes,
    )?;
    load_overlay(machine).await?;
    let images = &machine.images;
    let image = match offer {
        Offer::Here(image) => Unpacked::of_store(image, images),
        Offer::AtRegistry(resolved) => {
            Unpacked::pull(&puller, &resolved, &limits, images, plan.room).await?
        }
    };
    Ok(Downloaded {
        image,
        candidate,
        origin,
        evidence,
    })
}

async fn write(
    machine: &Machine,
    downloaded: Downloaded,
    progress: &ProgressSink,
) -> anyhow::Result<()> {
    let Downloaded {
        image,
        candidate,
        origin,
        evidence,
    } = downloaded;
    // The remains of an interrupted installation are not worth keeping: without a loader nothing boots from them.
    let efi = machine.disk.format_efi().await?;
    let new = Installed { efi, booted: None };
    let mounted = boot_assets::ForInstaller::mount(&new).await?;
    let esp = EspForInstaller {
        folder: mounted.path().to_owned(),
        running: None,
    };
    let delivery = installer::run(&machine.init, &image, &candidate, Some(&esp), progress).await?;
    drop(mounted);
    let boot_entry = delivery.boot_entry;
    let in_force = machine.config();
    let admitted = admit::admit(in_force.as_deref(), delivery, &origin.version).await;
    if let Err(untrusted) = admitted {
        // The installer has done its work: without a loader the next boot does not start it.
        machine.disk.format_efi().await.with_context(|| {
            format!("the disk may start a version that is refused: {untrusted:#}")
        })?;
        return Err(untrusted);
    }
    if let Err(error) = committed::remember(machine, boot_entry, (origin, evidence)).await {
        tracing::warn!("nobody will know which image the version came from: {error:#}");
    }
    remove_unless_needed(machine, &image).await?;
    boot_assets::keep_boot_entries(machine, When::Installing).await;
    Ok(())
}
