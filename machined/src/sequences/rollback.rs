//! The rollback: a reboot into the other version that was healthy once.

use std::sync::Arc;

use super::shutdown;
use super::steps::boot_assets;
use super::upgrade::trial_record;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation};
use crate::store::event_log::ActorId;
use crate::upgrade::{Refusal, ReleaseOrigin, below_floor};

/// Why a rollback was refused.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// Another operation is running.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// There is no other version.
    #[error(
        "this machine does not boot from its disk, so there is no other version to go back to; upgrade to it instead"
    )]
    NotInstalled,
    /// The other version is below the machine's floor.
    #[error(transparent)]
    BelowFloor(Refusal),
    /// No other version could be booted.
    #[error(transparent)]
    Failed(anyhow::Error),
}

/// Makes the other version the next to boot, and reboots. By force even to a version below the machine's floor.
///
/// The decision: the floor is in force here too. A rollback would otherwise be the way around it for whoever may call this method, and
/// force still spares everybody a visit to the machine. A version that fails its trial is left in any case: nobody asks for that.
pub async fn rollback(machine: &Arc<Machine>, force: bool) -> Result<ActorId, RollbackError> {
    let lock = machine.lock_operation(Operation::Rollback)?;
    let installed = boot_assets::installed(machine)
        .await
        .map_err(RollbackError::Failed)?
        .ok_or(RollbackError::NotInstalled)?;
    let other = boot_assets::other(&machine.running, &installed)
        .await
        .map_err(RollbackError::Failed)?;
    match below_floor(&other, &machine.upgrades.floor_in_force()) {
        Some(objection) if force => tracing::warn!("forced, although {objection}"),
        Some(objection) => return Err(RollbackError::BelowFloor(objection)),
        None => {}
    }
    // Also the running version, if its entry is not blessed: the caller wants to leave it.
    let staged = trial_record::tried_next(machine)
        .await
        .map_err(RollbackError::Failed)?;
    let staged = staged.and_then(|record| record.upgrade.boot_entry);
    // First: if a later step fails, a reboot must not start a version from memory that has been removed from the disk.
    machine.upgrades.forget_prepared(&machine.init).await;
    machine.pins.forget_preparation().await;
    let version = boot_assets::prefer_other(&machine.running, &installed, staged)
        .await
        .map_err(RollbackError::Failed)?;
    // The upgrade under way is over: the next boot is the requested one, and no failure.
    trial_record::remove_record(machine).map_err(RollbackError::Failed)?;
    hold_running(machine, &version).await;
    tracing::warn!("rollback: {version} is booted next");
    Ok(shutdown::reboot_next(machine, lock))
}

/// Has a machine that follows a channel not go to the running release again by itself, once the other version runs.
async fn hold_running(machine: &Machine, to: &str) {
    let origin = machine.store.get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
    let version = machine.running.version.parse();
    // A version that came from a medium, or has no place in the order of versions, is no release that a channel could name here.
    if let (Some(origin), Ok(version)) = (origin, version) {
        let (follow, init) = (&machine.follow, &machine.init);
        follow.leave(origin.digest, version, to, init).await;
    }
}
