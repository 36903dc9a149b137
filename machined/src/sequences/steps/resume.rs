//! Resumes work after a sequence that failed before its point of no return.

use std::sync::Arc;

use super::attend::attend;
use super::disk;
use crate::config_source::persisted::Keep;
use crate::machine::Machine;
use crate::sequences::os_extensions;
use crate::sequences::settings::{self, When};
use crate::store::MachineStage;

/// Mounts the disk again if the sequence unmounted it, and starts the services that it stopped.
pub(in crate::sequences) async fn go_on(machine: &Arc<Machine>) {
    tracing::warn!("{} goes on", machine.running.version);
    if let Err(error) = mount_again(machine).await {
        tracing::error!("the disk stays away: {error:#}");
    }
    settings::apply_at(machine, When::BesideDisk).await;
    os_extensions::settle(machine).await;
    // The sequence may have interrupted a boot that had not begun with it.
    attend(machine);
    machine.left_sockets.prove();
    machine.services.start_workloads();
    machine.enter(MachineStage::Running);
}

async fn mount_again(machine: &Machine) -> anyhow::Result<()> {
    let mounted = machine.disk.status().borrow().var_mounted;
    if !mounted {
        // The sequence has changed no config: the one on STATE may be staged, and the one in force on trial.
        disk::mount(machine, Keep::IfThereIsNone).await?;
    }
    // Logs were closed before the sequence tried to unmount the disk.
    disk::prepare_volumes(machine).await;
    Ok(())
}
