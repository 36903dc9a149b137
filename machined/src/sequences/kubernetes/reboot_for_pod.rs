//! The reboot of the machine that a pod asks for.

use std::sync::Arc;

use instar_kubernetes_plan::STATUS;

use crate::base::error_chain::chain;
use crate::config::Kubernetes;
use crate::kubernetes;
use crate::machine::Machine;
use crate::operation_lock::Operation;
use crate::sequences::reboot_after;
use crate::sequences::steps::up::up;

/// Reboots the machine for a pod. Its agent waits for its own end, with a lock of the cluster in its hands: so the container ends even if
/// the kernel goes on. Returns why the reboot waits, if it does: it is tried again in the next turn.
pub(super) async fn reboot_for_pod(machine: &Arc<Machine>) -> Option<String> {
    let lock = match machine.lock_operation(Operation::Reboot) {
        Ok(lock) => lock,
        // Without the time that it has been running: a text that stays the same is logged once.
        Err(busy) => {
            let operation = busy.operation;
            return Some(format!(
                "the reboot that a pod asks for waits for the end of another operation: {operation}"
            ));
        }
    };
    tracing::info!("Kubernetes: a pod asks for a reboot of the machine");
    let up_before = end_container(machine).await;
    // The question is answered; the next container begins without it.
    if let Err(error) = std::fs::remove_file(kubernetes::control().join(STATUS)) {
        tracing::warn!("Kubernetes: its status stays: {error}");
    }
    reboot_after(machine, lock, up_before);
    None
}

/// Ends the container, which starts again if the reboot fails. Returns what was up before: the next version is judged by kubelet as well.
async fn end_container(machine: &Machine) -> Vec<String> {
    let up_before = up(machine).await;
    if let Err(error) = machine.services.hold_one(Kubernetes::CONTAINER).await {
        tracing::warn!(
            "Kubernetes: its container ends with the machine: {}",
            chain(&error)
        );
    }
    up_before
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::sequences::image_pins::machine_for_tests::unbooted;
    use crate::services::workload_for_tests::running;

    /// Both a version that does not start and one that starts without kubelet would be seen only by the node's absence.
    #[tokio::test]
    async fn the_next_version_is_judged_by_the_container_and_a_failed_reboot_starts_it_again() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let id = Kubernetes::CONTAINER;
        let service = running(&machine.services, id, Some(Duration::ZERO)).await;
        assert_eq!(end_container(&machine).await, [id]);
        assert!(machine.services.up().is_empty(), "{}", service.summary());
        // As after a version that was refused.
        machine.services.start_workloads();
        service.up().await;
    }
}
