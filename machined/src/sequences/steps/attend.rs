//! Begins to look after containers that an earlier machined left running, also when the machine's disk is not there.

use std::sync::Arc;
use std::time::Duration;

use crate::machine::Machine;
use crate::services::{Phase, Services};

/// Interval between looks for containers that have ended.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Has containers that live on looked after: at once if /var is mounted, and otherwise when it is. To compare a container takes its image,
/// which is on /var: without /var each container would end, and could not start again. Until then the dead are not shown as running, and the
/// output of the others is read.
pub(in crate::sequences) fn attend(machine: &Arc<Machine>) {
    let mut disk = machine.disk.status();
    if disk.borrow().var_mounted {
        return machine.services.attend();
    }
    machine.services.read_output();
    let machine = machine.clone();
    crate::base::task::spawn(async move {
        tokio::select! {
            // The sender lives as long as the machine.
            _ = disk.wait_for(|disk| disk.var_mounted) => machine.services.attend(),
            () = attend_the_dead(&machine.services) => {}
        }
    });
}

/// Looks after containers that are shown as running, and have ended; for ever.
async fn attend_the_dead(services: &Services) {
    loop {
        for service in services.list() {
            let (status, definition) = (service.status(), service.definition());
            let is_unattended = status.left && status.phase == Phase::Running;
            if is_unattended
                && definition.workload.lives_on().is_none()
                && let Err(error) = services.restart_if_wanted(&definition.id).await
            {
                tracing::warn!("service {}: {error}", definition.id);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
