//! The staged upgrade: a new version is put beside the one that runs, and the next boot tries it, whatever brings that about.
//!
//! Nothing that runs is disturbed. From here on the boot is that of every upgrade with a reboot: the loader counts its tries, and
//! what it finds on STATE tells it by what it is measured.

use std::sync::Arc;

use anyhow::Context as _;

use super::upgrade::{Checked, check_first, run_installer, up};
use super::{Phase, Sequence, boot_assets, run, settle_upgrade};
use crate::event_log::ActorId;
use crate::machine::{Machine, Turn};
use crate::upgrade::{UpgradeError, UpgradeRecord, UpgradeRequest};

/// What the next boot tries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// The version.
    pub version: String,
    /// The call that asked for it.
    pub actor: ActorId,
}

/// Checks an upgrade and prepares it; returns when the next boot would start it.
///
/// # Errors
/// Nothing of what ran or was to be booted has changed, but for a version that was staged before: that may be gone.
pub async fn stage(machine: Arc<Machine>, request: UpgradeRequest) -> Result<Staged, UpgradeError> {
    let turn = machine.take_turn()?;
    // In a task of its own: a caller who goes away leaves nothing half done.
    let staging = tokio::spawn(prepare(machine, turn, request));
    staging
        .await
        .context("the staging was interrupted")
        .map_err(UpgradeError::Machine)?
}

async fn prepare(
    machine: Arc<Machine>,
    turn: Turn,
    request: UpgradeRequest,
) -> Result<Staged, UpgradeError> {
    let installed = boot_assets::installed(&machine).await;
    let installed = installed.map_err(UpgradeError::Machine)?;
    if installed.is_none() || machine.disk.state().is_none() {
        return Err(UpgradeError::NotInstalled);
    }
    let actor = ActorId::new();
    let checked = check_first(&machine, &request, &actor).await?;
    let (pending, image) = (checked.pending.clone(), checked.image.clone());
    let sequence = Sequence {
        name: "stageUpgrade",
        phases: vec![Phase::of("upgrade", write(machine.clone(), checked))],
    };
    let outcome = run(sequence, &actor, &machine.events).await;
    if outcome.is_err()
        && let Err(error) = settle_upgrade::withdraw(&machine, &pending).await
    {
        tracing::error!("the next boot may try {}: {error:#}", pending.to);
    }
    if let Err(error) = machine.images.remove(image.digest()).await {
        tracing::warn!("the installer's image stays: {error:#}");
    }
    drop(turn);
    outcome.map_err(UpgradeError::NotStaged)?;
    tracing::info!("{} is staged: the next boot tries it", pending.to);
    Ok(Staged {
        version: pending.to,
        actor,
    })
}

/// Puts the version beside the one that runs, and notes what the next boot is to make of it.
async fn write(machine: Arc<Machine>, checked: Checked) -> anyhow::Result<()> {
    settle_upgrade::unstage(&machine).await?;
    let delivery = run_installer(&machine, &checked.image, &checked.candidate).await?;
    let mut upgrade = checked.pending;
    upgrade.boot_entry = delivery.boot_entry;
    let record = UpgradeRecord {
        upgrade,
        services_up: up(&machine),
        failures: Vec::new(),
    };
    let state = machine.disk.state().context("STATE is not mounted")?;
    record.save(state)?;
    boot_assets::try_next_loader(&machine).await
}
