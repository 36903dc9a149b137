//! The traces of a committed release on the machine: the floor, and the image that it came from. Images that were pinned for it are released.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::base::blocking_io::{self, ANSWER};
use crate::machine::Machine;
use crate::sequences::steps::boot_assets::{self, Installed};
use crate::upgrade::{
    Evidence, Floor, FloorInForce, PendingUpgrade, ReleaseOrigin, ReleaseOrigins,
};

/// Notes that the running version is kept. `upgrade`: the upgrade that brought it, if this is its commit. What cannot be written is
/// logged: the version runs, and is better than none.
pub(in crate::sequences) async fn note(machine: &Machine, upgrade: Option<&PendingUpgrade>) {
    let running = &machine.running;
    let own = Floor::of_release(running.floor.as_ref(), &running.version);
    let labelled =
        upgrade.and_then(|upgrade| Floor::of_release(upgrade.floor.as_ref(), &upgrade.to));
    let in_force = machine.upgrades.floor_in_force();
    let instead = upgrade.and_then(|it| in_force.instead_of_unread(&it.from, &it.to));
    let replaces = instead.is_some();
    let floor = Floor::higher(Floor::higher(own, labelled), instead);
    let rose = machine.upgrades.raise_floor(floor);
    if let Some(floor) = &rose {
        tracing::info!("no version below {} is taken from now on", floor.version);
    }
    if let Err(error) = save_floor(machine, replaces).await {
        tracing::error!("the floor is not kept over a reboot: {error:#}");
    }
    let Some(upgrade) = upgrade else {
        return;
    };
    let image = upgrade.digest.parse().ok();
    let released = machine.pins.release(&running.version, image).await;
    if released > 0 {
        tracing::info!("{released} images that were pinned for this upgrade are released");
    }
    let Some(origin) = upgrade.origin() else {
        return;
    };
    machine.store.put(ReleaseOrigin::RUNNING, origin.clone());
    let kept = (origin, upgrade.evidence.clone());
    if let Err(error) = remember(machine, upgrade.boot_entry, kept).await {
        tracing::warn!("after a reboot nobody knows which image this version came from: {error:#}");
    }
}

fn state(machine: &Machine) -> Option<PathBuf> {
    machine.disk.state().map(PathBuf::from)
}

/// Brings the floor to STATE, which may have been mounted after the floor rose.
async fn save_floor(machine: &Machine, replaces: bool) -> anyhow::Result<()> {
    let (Some(state), Some(floor)) = (state(machine), machine.upgrades.floor()) else {
        return Ok(());
    };
    blocking_io::within(ANSWER, move || floor.keep(&state, replaces)).await??;
    if replaces {
        machine.upgrades.note_unread_floor(None);
    }
    Ok(())
}

/// Notes which image the version of this boot entry came from, and what rules and keys of later judge it by.
pub(in crate::sequences) async fn remember(
    machine: &Machine,
    boot_entry: Option<u32>,
    (origin, evidence): (ReleaseOrigin, Evidence),
) -> anyhow::Result<()> {
    let (Some(state), Some(order)) = (state(machine), boot_entry) else {
        return Ok(());
    };
    let Some(installed) = boot_assets::installed(machine).await? else {
        return Ok(());
    };
    let uki = boot_assets::uki(&installed, order).await?;
    let uki = uki.context("its boot entry is gone")?;
    blocking_io::within(ANSWER, move || {
        let mut origins = ReleaseOrigins::load(&state).unwrap_or_else(|error| {
            tracing::warn!("the images of versions before are forgotten: {error:#}");
            ReleaseOrigins::default()
        });
        origins.note(uki, origin, evidence);
        origins.save(&state)
    })
    .await?
}

/// Returns the upgrade that brought the version with this UKI, as far as it is on record; None if nothing is.
pub(in crate::sequences) async fn installed_by(
    machine: &Machine,
    uki: String,
) -> anyhow::Result<Option<PendingUpgrade>> {
    let Some(state) = state(machine) else {
        return Ok(None);
    };
    let origins = blocking_io::within(ANSWER, move || ReleaseOrigins::load(&state)).await??;
    let installed = origins.installed(&uki);
    Ok(installed.map(|(origin, evidence)| PendingUpgrade::of_installed(origin, evidence)))
}

/// Finds the image that the running version came from, unless the hand-over has told it.
pub(in crate::sequences) async fn find_origin(machine: &Machine) -> anyhow::Result<()> {
    let known = machine.store.get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
    let (None, Some(state)) = (known, state(machine)) else {
        return Ok(());
    };
    let Some(installed) = boot_assets::installed(machine).await? else {
        return Ok(());
    };
    if let Some(origin) = of_booted(&installed, state).await?
        && origin.version == machine.running.version
    {
        machine.store.put(ReleaseOrigin::RUNNING, origin);
    }
    Ok(())
}

async fn of_booted(installed: &Installed, state: PathBuf) -> anyhow::Result<Option<ReleaseOrigin>> {
    let Some(order) = installed.booted else {
        return Ok(None);
    };
    let Some(uki) = boot_assets::uki(installed, order).await? else {
        return Ok(None);
    };
    let origins = blocking_io::within(ANSWER, move || ReleaseOrigins::load(&state)).await??;
    Ok(origins.of(&uki).cloned())
}

/// Takes up the floor on STATE. While it cannot be read, no version before the running one is taken.
pub(in crate::sequences) fn take_up_floor(machine: &Machine) {
    let Some(state) = machine.disk.state() else {
        return;
    };
    let running = &machine.running;
    let FloorInForce { known, unread } =
        FloorInForce::of_record(Floor::load(state), &running.version);
    if let Some(unread) = &unread {
        tracing::error!(
            "the floor cannot be read, so no version before {} is taken without force: {}",
            running.version,
            unread.why
        );
    }
    machine.upgrades.note_unread_floor(unread);
    machine.upgrades.raise_floor(known);
}
