//! The other nodes of this node's cluster, for readers of the list of members.

use crate::kubernetes::cluster_nodes;
use crate::machine::Machine;

/// Reads the nodes of the cluster again if they were read a while ago. The reader waits for a few seconds at most.
pub async fn look_at_members(machine: &Machine) {
    let configured = machine.config();
    let kubernetes = configured.as_ref().map(|it| &it.config.kubernetes);
    match kubernetes {
        Some(Some(kubernetes)) => {
            let asking = cluster_nodes(kubernetes);
            machine.known_nodes.refresh(asking).await;
        }
        _ => machine.known_nodes.forget(),
    }
}
