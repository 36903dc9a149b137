//! The record of the upgrade under way, on STATE, and the boot entry that it names: gathers the facts that a boot needs about them, and
//! changes both together as the upgrade goes on, succeeds or fails. `upgrade::trial` makes the decisions.

use std::path::Path;

use anyhow::{Context as _, ensure};
use instar_esp::EntryName;

use super::committed;
use crate::base::blocking_io::{self, ANSWER};
use crate::init_link::StartReason;
use crate::machine::Machine;
use crate::sequences::emit_failure;
use crate::sequences::steps::boot_assets::{self, Installed};
use crate::sequences::steps::disk;
use crate::store::Problem;
use crate::store::event_log::ActorId;
use crate::upgrade::trial::{
    self, Bless, BootedEntry, Counter, EntryNow, RecordedEntry, RecordedUpgrade, RecordedVersion,
};
use crate::upgrade::{PendingUpgrade, ReleaseOrigin, UpgradeRecord};

/// The name of the problem that the boot entry of the running version is not blessed.
pub(super) const UNBLESSED: &str = "boot entry";

/// Reads the record of an upgrade that this boot has to finish; returns it if the running version is the one on trial. If another version
/// runs, the upgrade has failed, and is settled at once.
pub(in crate::sequences) async fn load_record(
    machine: &Machine,
) -> anyhow::Result<Option<UpgradeRecord>> {
    let Some(record) = record(machine).await? else {
        return Ok(None);
    };
    let version = &record.upgrade.to;
    match recorded_upgrade(machine, &record).await? {
        RecordedUpgrade::OnTrial => {
            tracing::info!("{version} is tried; it is kept once it is healthy");
            return Ok(Some(record));
        }
        RecordedUpgrade::TakenBack => {
            tracing::info!("the upgrade to {version} was taken back");
            remove_record(machine).await?;
        }
        RecordedUpgrade::Kept => {
            tracing::info!("the upgrade to {version} was kept");
            committed::note(machine, Some(&record.upgrade)).await;
            remove_record(machine).await?;
        }
        RecordedUpgrade::Failed => {
            tell_failure(machine, &record);
            give_up(machine, &record.upgrade).await?;
        }
    }
    Ok(None)
}

/// Finds the outcome of the recorded upgrade.
async fn recorded_upgrade(
    machine: &Machine,
    record: &UpgradeRecord,
) -> anyhow::Result<RecordedUpgrade> {
    let installed = boot_assets::installed(machine).await?;
    let recorded = record.upgrade.boot_entry;
    let entry = recorded_entry(installed.as_ref(), recorded).await?;
    let booted = BootedEntry::of(installed.and_then(|installed| installed.booted), recorded);
    let names_running = record.upgrade.to == machine.running.version;
    Ok(RecordedUpgrade::of(entry, booted, names_running))
}

/// Looks at the entry of the recorded order on the disk.
async fn recorded_entry(
    installed: Option<&Installed>,
    recorded: Option<u32>,
) -> anyhow::Result<RecordedEntry> {
    let (Some(installed), Some(order)) = (installed, recorded) else {
        return Ok(RecordedEntry::NotNamed);
    };
    Ok(match boot_assets::entry(installed, order).await? {
        None => RecordedEntry::Gone,
        Some(entry) if entry.is_blessed() => RecordedEntry::Blessed,
        Some(_) => RecordedEntry::Counting,
    })
}

/// Tells the caller of an upgrade why another version runs, and remembers the image as failed.
fn tell_failure(machine: &Machine, record: &UpgradeRecord) {
    let reason = format!(
        "version {} was given up, {} runs: {}",
        record.upgrade.to,
        machine.running.version,
        record.reason()
    );
    tracing::error!("{reason}");
    machine.upgrades.note_rollback();
    // A version that was tried without a record of its image (see `of_counted_start`) names no image to remember.
    if !record.upgrade.digest.is_empty() {
        machine
            .upgrades
            .failed_images()
            .remember(record.upgrade.digest.clone(), record.reason());
    }
    emit_failure(&machine.events, &record.upgrade.actor, "upgrade", reason);
}

/// Returns the loader's report on the start of this kernel, and the boot entry in it. Needs no disk.
pub(in crate::sequences) async fn loaders_word(machine: &Machine) -> (Counter, Option<EntryName>) {
    match boot_assets::on_trial(machine).await {
        Ok(Some(entry)) => (Counter::Counted, Some(entry)),
        Ok(None) => (Counter::NotCounted, None),
        Err(error) => {
            tracing::error!("nobody knows whether the boot loader counts this start: {error:#}");
            (Counter::Unknown, None)
        }
    }
}

/// Returns the record of the running version if the loader counts its start; a new record if STATE has none.
pub(in crate::sequences) async fn of_counted_start(
    machine: &Machine,
    start: StartReason,
) -> Option<UpgradeRecord> {
    let (counter, entry) = loaders_word(machine).await;
    let now = match &entry {
        Some(entry) => entry_now(machine, start, entry).await,
        None => EntryNow::AsBooted,
    };
    let entry = entry.filter(|_| trial::is_counted(counter, now))?;
    tracing::info!("the boot loader counts this start of {}", entry.version);
    let order = Some(entry.order);
    match record(machine).await {
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

/// Returns the counted entry's state on the disk now. The loader reports the state when the kernel started: if machined has restarted
/// since, the entry may have been blessed.
async fn entry_now(machine: &Machine, start: StartReason, booted: &EntryName) -> EntryNow {
    if start == StartReason::Boot {
        return EntryNow::AsBooted;
    }
    if booted.version.to_string() != machine.running.version {
        return EntryNow::OfAnotherVersion;
    }
    let entry = async {
        let installed = boot_assets::installed(machine).await?;
        let installed = installed.context("its disk is not found any more")?;
        boot_assets::entry(&installed, booted.order).await
    };
    match entry.await {
        Ok(Some(entry)) if entry.is_blessed() => EntryNow::Blessed,
        Ok(Some(_)) => EntryNow::Counting,
        Ok(None) => EntryNow::Gone,
        Err(error) => {
            tracing::error!("nobody knows whether this version is still on trial: {error:#}");
            EntryNow::Unknown
        }
    }
}

/// The same for a version that has not read its upgrade's record, because it has no machine config.
pub(in crate::sequences) async fn of_counted_start_without_config(
    machine: &Machine,
    start: StartReason,
) -> Option<UpgradeRecord> {
    let unrecorded = of_counted_start(machine, StartReason::Boot).await?;
    // If STATE can be mounted, the caller of the upgrade can be told why it failed.
    if let Err(error) = disk::find_state(machine).await {
        tracing::error!("STATE stays away: {error:#}");
        return (start == StartReason::Boot).then_some(unrecorded);
    }
    of_counted_start(machine, start).await
}

/// Notes on STATE why this try failed.
pub(in crate::sequences) async fn note_failure(
    machine: &Machine,
    mut record: UpgradeRecord,
    reason: &str,
) -> anyhow::Result<()> {
    record.failures.push(reason.to_owned());
    ensure!(save(machine, &record).await?, "STATE is not mounted");
    Ok(())
}

/// Keeps the running version: blesses its boot entry, notes what the commit leaves on the machine, and removes the record of its upgrade.
/// `upgrade`: the upgrade that brought the version; None leaves it to the record.
pub(in crate::sequences) async fn finish(
    machine: &Machine,
    bless: Bless,
    upgrade: Option<&PendingUpgrade>,
) -> anyhow::Result<()> {
    let record = match record(machine).await {
        Err(error) if !bless.gives_way_to_a_record() => {
            tracing::error!("nobody knows who asked for this version: {error:#}");
            None
        }
        found => found?,
    };
    if bless.gives_way_to_a_record() && record.is_some() {
        return Ok(());
    }
    let upgrade = upgrade.or(record.as_ref().map(|record| &record.upgrade));
    let Some(installed) = boot_assets::installed(machine).await? else {
        committed::note(machine, upgrade).await;
        return Ok(());
    };
    if let Some(order) = bless.order(installed.booted) {
        boot_assets::bless(machine, &installed, order).await?;
    }
    // Before the record goes: after a power cut the next boot finds it, and notes the same.
    committed::note(machine, upgrade).await;
    remove_record(machine).await
}

/// Removes the version of a failed upgrade, so that no boot tries it again.
pub(in crate::sequences) async fn give_up(
    machine: &Machine,
    upgrade: &PendingUpgrade,
) -> anyhow::Result<()> {
    if let Some(order) = upgrade.boot_entry
        && let Some(installed) = boot_assets::installed(machine).await?
    {
        boot_assets::forget(&installed, order).await?;
    }
    remove_record(machine).await
}

/// Removes a version that waits for its first boot: another one takes its place. The record may be that of the running version instead, which
/// was kept and whose entry the disk has not blessed yet: its upgrade ends first.
///
/// # Errors
/// Nothing may take the place of a running version that no reboot would find.
pub(in crate::sequences) async fn unstage(machine: &Machine) -> anyhow::Result<()> {
    machine.upgrades.forget_prepared(&machine.init).await;
    match recorded_version(machine).await? {
        None | Some((_, RecordedVersion::Booted)) => Ok(()),
        Some((record, RecordedVersion::Running)) => end_kept(machine, &record.upgrade).await,
        Some((record, RecordedVersion::Waiting)) => {
            tracing::warn!("{} was staged and goes", record.upgrade.to);
            give_up(machine, &record.upgrade).await
        }
    }
}

/// Ends the upgrade to the running version, which was kept: blesses its entry, and removes the record.
async fn end_kept(machine: &Machine, upgrade: &PendingUpgrade) -> anyhow::Result<()> {
    let version = &upgrade.to;
    let bless = upgrade.boot_entry.map_or(Bless::Booted, Bless::Order);
    let Err(error) = finish(machine, bless, Some(upgrade)).await else {
        tracing::info!(
            "the boot entry of {version}, which runs, is blessed before another version comes"
        );
        machine.store.remove::<Problem>(UNBLESSED);
        return Ok(());
    };
    let installed = boot_assets::installed(machine).await?;
    match recorded_entry(installed.as_ref(), upgrade.boot_entry).await? {
        // The firmware's entries for the loader are not written, or only the record was left.
        RecordedEntry::Blessed => tracing::warn!("{version} runs, and is kept: {error:#}"),
        RecordedEntry::Gone => tracing::warn!("{version} runs from memory alone: {error:#}"),
        RecordedEntry::Counting | RecordedEntry::NotNamed => {
            return Err(error.context(format!(
                "nothing takes the place of {version}, which runs, before its boot entry is blessed, as a reboot would lose it: try again once the disk takes that"
            )));
        }
    }
    remove_record(machine).await
}

/// Returns the upgrade that waits for its first start.
pub(in crate::sequences) async fn staged(
    machine: &Machine,
) -> anyhow::Result<Option<UpgradeRecord>> {
    let recorded = recorded_version(machine).await?;
    let waiting = recorded.filter(|(_, version)| *version == RecordedVersion::Waiting);
    Ok(waiting.map(|(record, _)| record))
}

/// Returns the upgrade whose version the next boot tries: one that waits for its first start, or the one to the running version if its entry
/// is not blessed yet. None if this kernel was booted from its entry.
pub(in crate::sequences) async fn tried_next(
    machine: &Machine,
) -> anyhow::Result<Option<UpgradeRecord>> {
    let recorded = recorded_version(machine).await?;
    let tried = recorded.filter(|(_, version)| *version != RecordedVersion::Booted);
    Ok(tried.map(|(record, _)| record))
}

/// Returns the record of the upgrade under way, and what its version does now.
async fn recorded_version(
    machine: &Machine,
) -> anyhow::Result<Option<(UpgradeRecord, RecordedVersion)>> {
    let Some(record) = record(machine).await? else {
        return Ok(None);
    };
    let installed = boot_assets::installed(machine).await?;
    let booted = installed.and_then(|installed| installed.booted);
    let running = machine.store.get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
    let version = RecordedVersion::of(&record.upgrade, booted, running.as_ref());
    Ok(Some((record, version)))
}

/// Notes the services that are up now, and the caller who starts the version that the next boot tries: the version is measured by this
/// moment, not by the one at which it was staged, and this caller is told if it fails. Returns whether there is such a version.
pub(in crate::sequences) async fn mark_started(
    machine: &Machine,
    up: Vec<String>,
    actor: &ActorId,
) -> anyhow::Result<bool> {
    let Some(mut record) = tried_next(machine).await? else {
        return Ok(false);
    };
    record.services_up = up;
    record.upgrade.actor = actor.clone();
    save(machine, &record).await
}

/// Removes the version that the record names, if there is a record.
pub(in crate::sequences) async fn give_up_last(machine: &Machine) -> anyhow::Result<()> {
    match record(machine).await? {
        Some(record) => give_up(machine, &record.upgrade).await,
        None => Ok(()),
    }
}

/// Takes back an upgrade that failed before it left this version.
pub(in crate::sequences) async fn withdraw(
    machine: &Machine,
    pending: &PendingUpgrade,
) -> anyhow::Result<()> {
    match record(machine).await? {
        Some(record) if is_same(&record.upgrade, pending) => {
            give_up(machine, &record.upgrade).await
        }
        _ => Ok(()),
    }
}

/// Whether both are the same upgrade: the same actor asked for it or for the reboot into it, or they have the same entry.
fn is_same(recorded: &PendingUpgrade, pending: &PendingUpgrade) -> bool {
    recorded.actor == pending.actor
        || (pending.boot_entry.is_some() && recorded.boot_entry == pending.boot_entry)
}

/// Returns the record of the upgrade under way; None without one, or while STATE is not mounted.
pub(in crate::sequences) async fn record(
    machine: &Machine,
) -> anyhow::Result<Option<UpgradeRecord>> {
    let found = with_state(machine.disk.state(), UpgradeRecord::load).await?;
    Ok(found.flatten())
}

/// Writes the record of the upgrade under way; returns false while STATE is not mounted.
pub(super) async fn save(machine: &Machine, record: &UpgradeRecord) -> anyhow::Result<bool> {
    let record = record.clone();
    let saved = with_state(machine.disk.state(), move |state| record.save(state)).await?;
    Ok(saved.is_some())
}

/// Removes the record: no upgrade is under way any more.
pub(in crate::sequences) async fn remove_record(machine: &Machine) -> anyhow::Result<()> {
    let removed = with_state(machine.disk.state(), UpgradeRecord::remove).await;
    removed.map(drop)
}

/// Works with files of STATE, if it is mounted, on a thread: a disk that is silent holds up neither the API nor a reboot by force.
pub(super) async fn with_state<T: Send + 'static>(
    state: Option<&Path>,
    work: impl FnOnce(&Path) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<Option<T>> {
    let Some(state) = state.map(Path::to_owned) else {
        return Ok(None);
    };
    let done = blocking_io::within(ANSWER, move || work(&state)).await?;
    done.map(Some)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state_partition::UPGRADE;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::time::Duration;

    #[tokio::test]
    async fn a_silent_disk_holds_up_nobody_but_who_asks_it() {
        let state = tempfile::tempdir().unwrap();
        let none = with_state(None, UpgradeRecord::load).await.unwrap();
        assert_eq!(none, None);
        let found = with_state(Some(state.path()), UpgradeRecord::load).await;
        assert_eq!(found.unwrap(), Some(None));

        // Whoever opens a pipe waits for its other end.
        let file = state.path().join(UPGRADE.name);
        mknodat(CWD, file.as_path(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let asked = with_state(Some(state.path()), UpgradeRecord::load);
        let limit = Duration::from_millis(20);
        assert!(tokio::time::timeout(limit, asked).await.is_err());
        // The thread ends with this.
        std::fs::write(&file, "").unwrap();
    }
}
