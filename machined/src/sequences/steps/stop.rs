//! The phases that take the machine down to where it can be left: shared by upgrade, reboot and shutdown.

use std::sync::Arc;
use std::time::Duration;

use super::{disk, kernel};
use crate::base::blocking_io;
use crate::disk::Users;
use crate::machine::Machine;
use crate::sequences::{Phase, Task, settings};

/// Whoever asked for the end of the machine does not wait longer for a disk.
const SYNC: Duration = Duration::from_secs(60);

/// Stops what the config asked for, and leaves the API.
pub(in crate::sequences) fn stop_services(machine: &Arc<Machine>) -> Phase {
    let machine = machine.clone();
    Phase::of("stopServices", async move {
        machine.services.stop_workloads().await;
        Ok(())
    })
}

/// Stops what has to end before a change of generations, and lets go of containers that live through it.
pub(in crate::sequences) fn stop_for_next_generation(machine: &Arc<Machine>) -> Phase {
    let machine = machine.clone();
    Phase::of("stopServices", async move {
        machine.services.leave_workloads().await;
        Ok(())
    })
}

/// Takes back what the config asked of the kernel. Parameters stay while containers run on that go by them: the next generation, which
/// finds with init what it takes to undo them, sets its own and takes back the rest.
pub(in crate::sequences) fn undo_settings(machine: &Arc<Machine>) -> Phase {
    let machine = machine.clone();
    Phase::of("undoSettings", async move {
        let undone = match machine.services.left().is_empty() {
            true => settings::undo(&machine).await,
            false => kernel::unload_modules(&machine).await,
        };
        if let Err(error) = undone {
            tracing::warn!("left to the next generation: {error:#}");
        }
        Ok(())
    })
}

/// Unmounts EPHEMERAL and STATE. What still holds it is named; it goes with the generation's mount namespace all the same.
pub(in crate::sequences) fn unmount(machine: &Arc<Machine>) -> Phase {
    let machine = machine.clone();
    Phase::of("unmount", async move {
        let users = match machine.services.left().is_empty() {
            true => Users::MustBeGone,
            false => Users::MayStay,
        };
        if let Err(error) = disk::unmount(&machine, users).await {
            tracing::warn!(
                "the disk is left to init's teardown: {:#}",
                anyhow::Error::from(error)
            );
            if let Err(error) = blocking_io::within(SYNC, rustix::fs::sync).await {
                tracing::warn!("not all that was written is on the disk: {error}");
            }
        }
        Ok(())
    })
}

/// The step that clients who wait for the end of the machine look for; it must be out before the link goes.
pub(in crate::sequences) fn stop_everything() -> Phase {
    Phase::new(
        "stopEverything",
        vec![Task::new("stopAllServices", async { Ok(()) })],
    )
}
