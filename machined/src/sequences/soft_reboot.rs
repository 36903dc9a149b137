//! The reboot without a restart of the kernel: if a version waits that has the running version's kernel and init, it starts as the next
//! generation. To the caller who asked for the reboot it is a boot like any other, with a boot id of its own.

use std::sync::Arc;

use anyhow::Context as _;

use super::shutdown;
use super::steps::leave::ANSWER_FIRST;
use super::steps::up::up_before_leaving;
use super::steps::{admit, resume, stop};
use super::upgrade::next_generation;
use super::upgrade::trial_record;
use super::{Phase, Sequence, run, waiting_version};
use crate::intent::next_config;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation, OperationLock};
use crate::store::MachineStage;
use crate::store::event_log::ActorId;
use crate::upgrade::{Prepared, Route};

/// Reboots in the quickest way: into the prepared version without restarting the kernel, or else the whole machine.
pub fn reboot_quickest(machine: &Arc<Machine>) -> Result<ActorId, Busy> {
    let lock = machine.lock_operation(Operation::Reboot)?;
    Ok(reboot_holding(machine, lock))
}

/// The same for a caller that holds the lock already, because it has prepared a version.
pub fn reboot_holding(machine: &Arc<Machine>, lock: OperationLock) -> ActorId {
    begin(machine, lock, None)
}

/// The same for a caller that has stopped services already: the next version is judged by those that were up before that.
pub(super) fn reboot_after(
    machine: &Arc<Machine>,
    lock: OperationLock,
    up_before: Vec<String>,
) -> ActorId {
    begin(machine, lock, Some(up_before))
}

fn begin(machine: &Arc<Machine>, lock: OperationLock, up_before: Option<Vec<String>>) -> ActorId {
    if machine.upgrades.prepared_version().is_none() {
        return shutdown::reboot_after(machine, lock, up_before);
    }
    let actor = ActorId::new();
    let lock = lock.hand_over(Operation::Reboot);
    let (machine, as_actor) = (machine.clone(), actor.clone());
    crate::base::task::spawn(async move {
        tokio::time::sleep(ANSWER_FIRST).await;
        waiting_version::judge_before_leaving(&machine, &lock).await;
        match machine.upgrades.take_prepared() {
            Some(prepared) => switch(machine, lock, prepared, up_before, as_actor).await,
            // It was taken back, or may start only through the firmware.
            None => shutdown::end_in_reboot(machine, lock, up_before, as_actor).await,
        }
    });
    actor
}

/// Runs the second half of an upgrade. Emits an upgrade's events as well: clients leave the stream at those of a reboot, and would miss the
/// outcome of a start that takes less than a second.
async fn switch(
    machine: Arc<Machine>,
    lock: OperationLock,
    prepared: Prepared,
    up_before: Option<Vec<String>>,
    actor: ActorId,
) {
    let Prepared {
        delivery,
        mut upgrade,
    } = prepared;
    tracing::info!("{} starts, without a reboot of the kernel", upgrade.to);
    machine.enter(MachineStage::Upgrading);
    let services_up = up_before_leaving(&machine, up_before).await;
    // If the power fails, a boot finds the record on the disk.
    if let Err(error) = trial_record::mark_started(&machine, services_up.clone(), &actor).await {
        tracing::warn!("a staged version is measured by what was up earlier: {error:#}");
    }
    upgrade.actor = actor.clone();
    let configured = next_config::of(&machine);
    let stop = stop::stop_for_next_generation(&machine, configured.clone());
    let pending = upgrade.clone();
    let (admitted, rootfs) = tokio::sync::oneshot::channel();
    // Admitted again: the config may demand another signature by now, or in the next generation.
    let admit = {
        let (configs, upgrade) = ([machine.config(), configured.clone()], upgrade.clone());
        async move {
            let rootfs = admit::admit_as(configs, delivery, &upgrade, Route::Soft).await?;
            // Without a receiver the reboot has been given up.
            let _ = admitted.send(rootfs);
            Ok(())
        }
    };
    let next = {
        let machine = machine.clone();
        async move {
            let rootfs = rootfs.await.context("the root filesystem is lost")?;
            next_generation(&machine, rootfs, configured, upgrade, services_up).await
        }
    };
    let sequence = Sequence {
        name: "upgrade",
        phases: vec![
            Phase::of("admitVersion", admit),
            stop,
            stop::unmount(&machine),
            stop::undo_settings(&machine),
            Phase::of("nextGeneration", next),
        ],
    };
    // Returns only after a failure, which it has reported.
    let _ = run(sequence, &actor, &machine.events).await;
    resume::go_on(&machine).await;
    if let Err(error) = trial_record::withdraw(&machine, &pending).await {
        tracing::error!("the next boot may try {}: {error:#}", pending.to);
    }
    if let Err(error) = Prepared::drop_kept(&machine.init).await {
        tracing::warn!("init holds on to the version that did not start: {error:#}");
    }
    drop(lock);
}
