//! The statuses of this machine's static pods, for readers of them: asked for while there is a reader, and not otherwise.

use crate::kubernetes::{KubernetesFact, StaticPodStatus, static_pod_statuses};
use crate::machine::Machine;

/// Reads the statuses again. The reader waits for a few seconds at most; while the API server does not answer, nobody knows a status, and none is
/// shown.
pub async fn look_at_static_pods(machine: &Machine) {
    let configured = machine.config();
    let kubernetes = configured.as_ref().map(|it| &it.config.kubernetes);
    let node = machine.store.list::<KubernetesFact>().into_iter().next();
    let statuses = match (kubernetes, node) {
        (Some(Some(kubernetes)), Some((metadata, _))) => {
            static_pod_statuses(kubernetes, &metadata.id).await
        }
        _ => Ok(Vec::new()),
    };
    let statuses = statuses.unwrap_or_else(|error| {
        tracing::debug!("Kubernetes: the statuses of static pods cannot be read: {error:#}");
        Vec::new()
    });
    let store = &machine.store;
    store.retain::<StaticPodStatus>(|id| statuses.iter().any(|(here, _)| here == id));
    for (id, status) in statuses {
        store.put(&id, status);
    }
}
