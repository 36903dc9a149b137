//! The staged upgrade: a new version is put beside the running one, which is not disturbed.
//!
//! On a machine that boots from its disk, the next boot tries the new version, whatever causes that boot. It then goes like any upgrade
//! with a reboot: the loader counts its tries, and the record on STATE names the services by which it is measured.
//!
//! The version is kept in memory too, if kernel and init are the same: it can then start without a reboot (see `soft_reboot`).

use std::sync::Arc;

use super::hang_up::Caller;
use super::steps::boot_assets;
use super::steps::up::up;
use super::upgrade::trial_record;
use super::upgrade::{
    Checked, before_any_change, check_first, remove_unless_needed, run_installer,
};
use super::{Phase, Sequence, run};
use crate::machine::Machine;
use crate::operation_lock::{Operation, OperationLock};
use crate::pins::Preparation;
use crate::store::event_log::ActorId;
use crate::upgrade::{
    Prepared, ProgressSink, Route, UpgradeError, UpgradeMode, UpgradeRecord, UpgradeRequest,
    installer,
};

/// The version that the next boot tries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// The version.
    pub version: String,
    /// The call that asked for it.
    pub actor: ActorId,
    /// How a reboot starts it, unless the caller asks for another way.
    pub path: Route,
}

impl Staged {
    /// Returns the way to start it, as a sentence.
    #[must_use]
    pub fn start(&self) -> String {
        match self.path {
            Route::Soft => "a reboot starts it, without the kernel".to_owned(),
            Route::Reboot(why) => format!("a reboot starts it ({why})"),
        }
    }
}

/// The event that starts the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The next boot, so the machine must boot from its disk.
    Boot,
    /// The caller's own call of Reboot.
    CallersReboot,
}

/// Checks and prepares an upgrade; returns when the next boot would start it, with the lock for a caller that wants this boot now. To be
/// run in a task of its own, as `prepare_upgrade`: a caller who disconnects leaves nothing half done. Until the image is here, it ends with its
/// caller.
///
/// # Errors
/// The running version and the version to be booted are unchanged, but a version that was staged before may be gone.
pub async fn stage(
    machine: &Arc<Machine>,
    request: UpgradeRequest,
    caller: Caller,
) -> Result<(Staged, OperationLock), UpgradeError> {
    let lock = machine.lock_operation(Operation::StageUpgrade)?;
    let staged = prepare(
        machine,
        &lock,
        request,
        caller,
        Start::Boot,
        &ProgressSink::silent(),
    )
    .await?;
    machine.pins.forget_preparation().await;
    Ok((staged, lock))
}

/// Puts the version of an upgrade that was prepared ahead beside the running one. Its image is pinned, so no registry is asked.
///
/// # Errors
/// As `stage`.
pub(super) async fn stage_prepared(
    machine: &Arc<Machine>,
    preparation: &Preparation,
) -> Result<Staged, UpgradeError> {
    let lock = machine.lock_operation(Operation::StageUpgrade)?;
    let is_kept = boot_assets::keeps_a_version(machine).await;
    let start = match is_kept.map_err(UpgradeError::Machine)? {
        true => Start::Boot,
        false => Start::CallersReboot,
    };
    let request = UpgradeRequest {
        image: preparation.pinned_name(),
        force: preparation.force,
        mode: UpgradeMode::Quickest,
    };
    let (caller, silent) = (Caller::machine(), ProgressSink::silent());
    prepare(machine, &lock, request, caller, start, &silent).await
}

/// Checks an upgrade and prepares it for the reboot that its caller is going to ask for; reports its progress.
///
/// # Errors
/// As `stage`.
pub async fn prepare_upgrade(
    machine: &Arc<Machine>,
    lock: OperationLock,
    request: UpgradeRequest,
    caller: Caller,
    progress: &ProgressSink,
) -> Result<Staged, UpgradeError> {
    let start = Start::CallersReboot;
    let prepared = prepare(machine, &lock, request, caller, start, progress).await?;
    machine.pins.forget_preparation().await;
    drop(lock);
    Ok(prepared)
}

async fn prepare(
    machine: &Arc<Machine>,
    lock: &OperationLock,
    request: UpgradeRequest,
    caller: Caller,
    start: Start,
    progress: &ProgressSink,
) -> Result<Staged, UpgradeError> {
    let is_kept = boot_assets::keeps_a_version(machine).await;
    let is_kept = is_kept.map_err(UpgradeError::Machine)?;
    if start == Start::Boot && !is_kept {
        return Err(UpgradeError::NotInstalled);
    }
    let actor = ActorId::new();
    let checking = check_first(machine, &request, &actor, progress);
    let checked = before_any_change(lock, caller, checking).await?;
    let (pending, image, path) = (checked.pending.clone(), checked.image.clone(), checked.path);
    let outcome = match path {
        Route::Reboot(why) if !is_kept => Err(UpgradeError::NowhereToKeep(why)),
        _ => {
            let sequence = Sequence {
                name: "stageUpgrade",
                phases: vec![Phase::of(
                    "upgrade",
                    write(machine.clone(), checked, progress.clone()),
                )],
            };
            run(sequence, &actor, &machine.events)
                .await
                .map_err(UpgradeError::NotStaged)
        }
    };
    if outcome.is_err()
        && let Err(error) = trial_record::withdraw(machine, &pending).await
    {
        tracing::error!("the next boot may try {}: {error:#}", pending.to);
    }
    if let Err(error) = remove_unless_needed(machine, &image).await {
        tracing::warn!("the installer's image stays: {error:#}");
    }
    outcome?;
    match start {
        Start::Boot => tracing::info!("{} is staged: the next boot tries it", pending.to),
        Start::CallersReboot => tracing::info!("{} is prepared and waits for a reboot", pending.to),
    }
    Ok(Staged {
        version: pending.to,
        actor,
        path,
    })
}

/// Puts the version beside the running one, and writes the record for its start.
async fn write(
    machine: Arc<Machine>,
    checked: Checked,
    progress: ProgressSink,
) -> anyhow::Result<()> {
    trial_record::unstage(&machine).await?;
    let mut record = UpgradeRecord {
        upgrade: checked.pending,
        services_up: up(&machine).await,
        failures: Vec::new(),
    };
    let (image, candidate) = (&checked.image, &checked.candidate);
    let delivery = run_installer(&machine, image, candidate, &mut record, &progress).await?;
    let upgrade = record.upgrade;
    if checked.path == Route::Soft {
        installer::verify(&delivery).await?;
        let prepared = Prepared { delivery, upgrade };
        machine.upgrades.set_prepared(prepared, &machine.init).await;
        return Ok(());
    }
    // A new loader is first used at a reboot.
    boot_assets::try_next_loader(&machine).await
}
