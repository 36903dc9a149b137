//! The end of an upgrade on a machine that boots from its disk: the version that runs is blessed once it is healthy, or the
//! one that did not become healthy is forgotten, and who asked for it is told why.

use anyhow::Context as _;
use instar_esp::EntryName;

use super::{boot_assets, disk, emit_failure};
use crate::event_log::ActorId;
use crate::init_link::StartReason;
use crate::machine::Machine;
use crate::upgrade::{PendingUpgrade, UpgradeRecord};

/// Looks for an upgrade that this boot is to finish: gives its record when this is the version that is tried. An upgrade
/// that has ended here, with another version, has failed, and is settled at once.
pub(super) async fn look_back(machine: &Machine) -> anyhow::Result<Option<UpgradeRecord>> {
    let Some(record) = record(machine)? else {
        return Ok(None);
    };
    let installed = boot_assets::installed(machine).await?;
    if let (Some(installed), Some(order)) = (&installed, record.upgrade.boot_entry) {
        // The power went before the record was removed, too.
        let ended = match boot_assets::entry(installed, order).await? {
            None => Some("was taken back"),
            // Nothing counts this start, and nothing would end its trial.
            Some(entry) if installed.booted == Some(order) && entry.is_blessed() => {
                Some("was kept")
            }
            Some(_) => None,
        };
        if let Some(ended) = ended {
            tracing::info!("the upgrade to {} {ended}", record.upgrade.to);
            remove_record(machine)?;
            return Ok(None);
        }
    }
    let booted = installed.and_then(|installed| installed.booted);
    let is_tried = record.upgrade.to == machine.running.version
        && (booted.is_none() || booted == record.upgrade.boot_entry);
    if is_tried {
        let version = &record.upgrade.to;
        tracing::info!("{version} is tried; it is kept once it is healthy");
        return Ok(Some(record));
    }
    let reason = format!(
        "version {} was given up, {} runs: {}",
        record.upgrade.to,
        machine.running.version,
        record.reason()
    );
    tracing::error!("{reason}");
    // A version that was tried without a record of its image (see `counted`) has none to remember.
    if !record.upgrade.digest.is_empty() {
        machine
            .failed_images()
            .remember(record.upgrade.digest.clone(), record.reason());
    }
    emit_failure(&machine.events, &record.upgrade.actor, "upgrade", reason);
    give_up(machine, &record.upgrade).await?;
    Ok(None)
}

/// The version that runs, if the loader counts its start: it is tried, with or without a record of who asked for it. The power may
/// have gone before that was written, a rollback leaves none, and a version that fails may not find STATE.
///
/// The loader's word is as old as the kernel's start. After another start of machined the entry has to say that still.
pub(super) async fn counted(machine: &Machine, start: StartReason) -> Option<UpgradeRecord> {
    let entry = match entry_on_trial(machine, start).await {
        Ok(entry) => entry?,
        Err(error) => {
            tracing::error!("nobody knows whether this version is on trial: {error:#}");
            return None;
        }
    };
    tracing::info!("the boot loader counts this start of {}", entry.version);
    let order = Some(entry.order);
    match record(machine) {
        Ok(Some(record)) if record.upgrade.boot_entry == order => return Some(record),
        Ok(_) => {}
        Err(error) => tracing::error!("nobody knows who asked for this version: {error:#}"),
    }
    let upgrade = PendingUpgrade {
        to: machine.running.version.clone(),
        boot_entry: order,
        ..PendingUpgrade::default()
    };
    Some(UpgradeRecord {
        upgrade,
        ..UpgradeRecord::default()
    })
}

async fn entry_on_trial(
    machine: &Machine,
    start: StartReason,
) -> anyhow::Result<Option<EntryName>> {
    let Some(entry) = boot_assets::on_trial(machine).await? else {
        return Ok(None);
    };
    if start == StartReason::Boot {
        return Ok(Some(entry));
    }
    let installed = boot_assets::installed(machine).await?;
    let installed = installed.context("its disk is not found any more")?;
    let now = boot_assets::entry(&installed, entry.order).await?;
    let is_blessed = now.is_some_and(|now| now.is_blessed());
    Ok((!is_blessed).then_some(entry))
}

/// The same for a version that got nowhere near its upgrade's record: it has no machine config.
pub(super) async fn counted_without_config(
    machine: &Machine,
    start: StartReason,
) -> Option<UpgradeRecord> {
    let unrecorded = counted(machine, StartReason::Boot).await?;
    // Who asked for the upgrade is told why it failed, if STATE can be had.
    if let Err(error) = disk::find_state(machine).await {
        tracing::error!("STATE stays away: {error:#}");
        return (start == StartReason::Boot).then_some(unrecorded);
    }
    counted(machine, start).await
}

/// Notes on STATE why this try failed.
pub(super) fn note_failure(
    machine: &Machine,
    mut record: UpgradeRecord,
    reason: &str,
) -> anyhow::Result<()> {
    let state = machine.disk.state().context("STATE is not mounted")?;
    record.failures.push(reason.to_owned());
    record.save(state)
}

/// The version that runs is healthy: blesses what it was booted from, or what it will be booted from after an upgrade
/// without a reboot.
///
/// While an upgrade is under way that has not passed its gate (machined was started again meanwhile, or there is no config)
/// nothing is blessed: the next boot tries it again, and judges.
pub(super) async fn keep(
    machine: &Machine,
    soft: Option<&PendingUpgrade>,
    passed_gate: bool,
) -> anyhow::Result<()> {
    if !passed_gate && record(machine)?.is_some() {
        return Ok(());
    }
    let Some(installed) = boot_assets::installed(machine).await? else {
        return Ok(());
    };
    let order = soft
        .and_then(|upgrade| upgrade.boot_entry)
        .or(installed.booted);
    if let Some(order) = order {
        boot_assets::bless(machine, &installed, order).await?;
    }
    remove_record(machine)
}

/// Forgets the version of an upgrade that failed, so that no boot tries it again.
pub(super) async fn give_up(machine: &Machine, upgrade: &PendingUpgrade) -> anyhow::Result<()> {
    if let Some(order) = upgrade.boot_entry
        && let Some(installed) = boot_assets::installed(machine).await?
    {
        boot_assets::forget(&installed, order).await?;
    }
    remove_record(machine)
}

/// Forgets a version that waits for its first boot, and was never started: another one takes its place.
pub(super) async fn unstage(machine: &Machine) -> anyhow::Result<()> {
    machine.forget_prepared().await;
    let Some(record) = staged(machine).await? else {
        return Ok(());
    };
    tracing::warn!("{} was staged and goes", record.upgrade.to);
    give_up(machine, &record.upgrade).await
}

/// The upgrade that waits for the next boot; none when what is under way is what runs.
pub(super) async fn staged(machine: &Machine) -> anyhow::Result<Option<UpgradeRecord>> {
    let Some(record) = record(machine)? else {
        return Ok(None);
    };
    let installed = boot_assets::installed(machine).await?;
    let booted = installed.and_then(|installed| installed.booted);
    Ok(Some(record).filter(|record| record.upgrade.boot_entry != booted))
}

/// Notes what is up now for the version that waits for the next boot, and who brings that about: it is measured by this moment,
/// not by that at which it was staged, and whoever waits for the boot is told when it comes to nothing. Gives whether one waits.
pub(super) async fn note_start(
    machine: &Machine,
    up: Vec<String>,
    actor: &ActorId,
) -> anyhow::Result<bool> {
    let (Some(mut record), Some(state)) = (staged(machine).await?, machine.disk.state()) else {
        return Ok(false);
    };
    record.services_up = up;
    record.upgrade.actor = actor.clone();
    record.save(state)?;
    Ok(true)
}

/// Forgets the version of the upgrade that the record names, if there is one.
pub(super) async fn give_up_last(machine: &Machine) -> anyhow::Result<()> {
    match record(machine)? {
        Some(record) => give_up(machine, &record.upgrade).await,
        None => Ok(()),
    }
}

/// An upgrade failed before it left this version: what it wrote so far is taken back.
pub(super) async fn withdraw(machine: &Machine, pending: &PendingUpgrade) -> anyhow::Result<()> {
    match record(machine)? {
        Some(record) if is_same(&record.upgrade, pending) => {
            give_up(machine, &record.upgrade).await
        }
        _ => Ok(()),
    }
}

/// An upgrade goes by the actor that asked for it or for the reboot into it, and by its entry.
fn is_same(recorded: &PendingUpgrade, pending: &PendingUpgrade) -> bool {
    recorded.actor == pending.actor
        || (pending.boot_entry.is_some() && recorded.boot_entry == pending.boot_entry)
}

/// The record of the upgrade that is under way; none without one, or while STATE is not mounted.
pub(super) fn record(machine: &Machine) -> anyhow::Result<Option<UpgradeRecord>> {
    machine.disk.state().map_or(Ok(None), UpgradeRecord::load)
}

/// No upgrade is under way any more.
pub(super) fn remove_record(machine: &Machine) -> anyhow::Result<()> {
    machine.disk.state().map_or(Ok(()), UpgradeRecord::remove)
}
