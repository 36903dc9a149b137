//! The reboot past firmware and boot loader, into the kernel that they would start.
//!
//! The loader does not count this start. A version on trial gets one start more than it has tries, and no more: any failure in it ends in a
//! reboot through the firmware, and from there on the loader counts as usual.

use std::sync::Arc;

use super::shutdown::{self, Urgency};
use super::steps::boot_assets;
use super::waiting_version;
use crate::init_link::End;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation};
use crate::store::MachineStage;
use crate::store::event_log::ActorId;

/// Why the machine does not reboot by kexec. It goes on unchanged.
#[derive(Debug, thiserror::Error)]
pub enum KexecRefused {
    /// Another operation is running.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// There is no kernel to load.
    #[error(
        "this machine does not boot from its disk, so there is no kernel to jump into; reboot it through the firmware"
    )]
    NotInstalled,
    /// The kernel refused the new one.
    #[error("nothing was loaded, reboot through the firmware instead")]
    NotLoaded(#[source] anyhow::Error),
}

/// Loads the kernel that would be booted next, and reboots into it.
pub async fn reboot_by_kexec(machine: &Arc<Machine>) -> Result<ActorId, KexecRefused> {
    let lock = machine.lock_operation(Operation::Reboot)?;
    waiting_version::judge_before_leaving(machine, &lock).await;
    load(machine).await?;
    Ok(shutdown::start(
        machine,
        lock,
        Urgency::Waits,
        MachineStage::Rebooting,
        End::Kexec,
    ))
}

/// Returns the end for a machine that has to be rebooted anyway: by kexec if possible.
pub(super) async fn or_reboot(machine: &Machine) -> End {
    match load(machine).await {
        Ok(()) => End::Kexec,
        Err(error) => {
            tracing::warn!("the machine reboots through the firmware: {error}");
            End::Reboot
        }
    }
}

async fn load(machine: &Machine) -> Result<(), KexecRefused> {
    let installed = boot_assets::installed(machine)
        .await
        .map_err(KexecRefused::NotLoaded)?
        .ok_or(KexecRefused::NotInstalled)?;
    let entry = boot_assets::load_next(&installed)
        .await
        .map_err(KexecRefused::NotLoaded)?;
    tracing::info!("loaded {entry} for a reboot past the firmware");
    Ok(())
}
