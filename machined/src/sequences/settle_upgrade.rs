//! The end of an upgrade on a machine that boots from its disk: the version that runs is blessed once it is healthy, or the
//! one that did not become healthy is forgotten, and who asked for it is told why.

use anyhow::Context as _;

use super::{boot_assets, emit_failure};
use crate::machine::Machine;
use crate::upgrade::{PendingUpgrade, UpgradeRecord};

/// Looks for an upgrade that this boot is to finish: gives its record when this is the version that is tried. An upgrade
/// that has ended here, with another version, has failed, and is settled at once.
pub(super) async fn look_back(machine: &Machine) -> anyhow::Result<Option<UpgradeRecord>> {
    let Some(record) = record(machine)? else {
        return Ok(None);
    };
    let installed = boot_assets::installed(machine).await?;
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
    machine
        .failed_images()
        .remember(record.upgrade.digest.clone(), record.reason());
    emit_failure(&machine.events, &record.upgrade.actor, "upgrade", reason);
    give_up(machine, &record.upgrade).await?;
    Ok(None)
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
        Some(record) if record.upgrade.actor == pending.actor => {
            give_up(machine, &record.upgrade).await
        }
        _ => Ok(()),
    }
}

/// The record of the upgrade that is under way; none without one, or while STATE is not mounted.
fn record(machine: &Machine) -> anyhow::Result<Option<UpgradeRecord>> {
    machine.disk.state().map_or(Ok(None), UpgradeRecord::load)
}

/// No upgrade is under way any more.
pub(super) fn remove_record(machine: &Machine) -> anyhow::Result<()> {
    machine.disk.state().map_or(Ok(()), UpgradeRecord::remove)
}
