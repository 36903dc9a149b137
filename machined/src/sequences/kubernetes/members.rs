//! The other nodes of this node's cluster, for readers of the list of members.

use crate::kubernetes::trial::Readiness;
use crate::kubernetes::{KubernetesFact, cluster_nodes};
use crate::machine::Machine;

/// Reads the nodes of the cluster again if they were read a while ago. The reader waits for a few seconds at most.
///
/// # Errors
/// The machine has the control plane of a cluster in which it is ready, and cannot read the cluster's nodes: a list without them would be
/// taken for the whole cluster. Other machines may not be allowed to read them, and list themselves.
pub async fn look_at_members(machine: &Machine) -> anyhow::Result<()> {
    let configured = machine.config();
    let kubernetes = configured.as_ref().map(|it| &it.config.kubernetes);
    let Some(Some(kubernetes)) = kubernetes else {
        machine.known_nodes.forget();
        return Ok(());
    };
    let cluster = kubernetes.cluster.endpoint.to_string();
    let asking = cluster_nodes(kubernetes);
    let read = machine.known_nodes.refresh(&cluster, asking).await;
    let facts = machine.store.list::<KubernetesFact>();
    let is_ready = facts
        .iter()
        .any(|(_, fact)| fact.readiness == Readiness::Ready);
    match read {
        Err(error) if kubernetes.control_plane.is_some() && is_ready => Err(error),
        Err(error) => {
            tracing::debug!("Kubernetes: {error:#}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
