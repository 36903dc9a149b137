//! The phases that take the machine down to where it can be left: shared by upgrade, reboot and shutdown.

use std::sync::Arc;

use super::{Phase, Task, disk};
use crate::machine::Machine;

/// Stops what the config asked for, and leaves the API.
pub(super) fn stop_services(machine: &Arc<Machine>) -> Phase {
    let machine = machine.clone();
    Phase::of("stopServices", async move {
        machine.services.stop_workloads().await;
        Ok(())
    })
}

/// Unmounts EPHEMERAL and STATE. What still holds it is named; it goes with the generation's mount namespace all the same.
pub(super) fn unmount(machine: &Arc<Machine>) -> Phase {
    let machine = machine.clone();
    Phase::of("unmount", async move {
        if let Err(error) = disk::unmount(&machine).await {
            tracing::warn!(
                "the disk is left to init's teardown: {:#}",
                anyhow::Error::from(error)
            );
            rustix::fs::sync();
        }
        Ok(())
    })
}

/// The step that clients who wait for the end of the machine look for; it must be out before the link goes.
pub(super) fn stop_everything() -> Phase {
    Phase::new(
        "stopEverything",
        vec![Task::new("stopAllServices", async { Ok(()) })],
    )
}
