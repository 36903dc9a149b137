//! The phases that take the machine down: shared by upgrade, reboot and shutdown.

use std::sync::Arc;
use std::time::Duration;

use super::disk;
use crate::base::blocking_io;
use crate::disk::Users;
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::sequences::{Phase, Task, Urgency, settings};

/// Time limit for writing the disk's caches: the caller who ends the machine does not wait longer.
const SYNC: Duration = Duration::from_secs(60);

/// Stops the services that the config asked for, and leaves the API up. In a hurry they have no time to end: they are killed.
pub(in crate::sequences) fn stop_services(machine: &Arc<Machine>, urgency: Urgency) -> Phase {
    let machine = machine.clone();
    Phase::of("stopServices", async move {
        match urgency {
            Urgency::Waits => machine.services.stop_workloads().await,
            Urgency::Force => machine.services.kill_workloads().await,
        }
        Ok(())
    })
}

/// Stops the services that end with the generation, and leaves the containers running that live through the change, by the config of the next
/// generation.
pub(in crate::sequences) fn stop_for_next_generation(
    machine: &Arc<Machine>,
    next: Option<Arc<Configured>>,
) -> Phase {
    let machine = machine.clone();
    Phase::of("stopServices", async move {
        let kept = intent::kept_by(&machine, next).await;
        machine.services.leave_workloads(None, &*kept).await;
        Ok(())
    })
}

/// Undoes the config's kernel settings. They stay while containers that depend on them run on: the next generation gets the record for the
/// undo from init, makes its own settings and undoes the rest. A link that a container has made would end with its module.
pub(in crate::sequences) fn undo_settings(machine: &Arc<Machine>) -> Phase {
    let machine = machine.clone();
    Phase::of("undoSettings", async move {
        if machine.services.left().is_empty()
            && let Err(error) = settings::undo(&machine).await
        {
            tracing::warn!("left to the next generation: {error:#}");
        }
        Ok(())
    })
}

/// Unmounts EPHEMERAL and STATE. A process that still uses them is named in the log; the mounts go with the generation's mount namespace.
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

/// Emits the event that clients wait for at the end of the machine; it must be sent before the link goes down.
pub(in crate::sequences) fn stop_everything() -> Phase {
    Phase::new(
        "stopEverything",
        vec![Task::new("stopAllServices", async { Ok(()) })],
    )
}
