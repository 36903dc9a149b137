//! The statuses of this machine's static pods, for readers of them: asked for while there is a reader, and not otherwise.

use std::time::{Duration, Instant};

use crate::kubernetes::{KubernetesFact, StaticPodStatus, static_pod_statuses};
use crate::machine::Machine;

/// The time after which the statuses are read again: each look costs the API server a connection.
const FRESH: Duration = Duration::from_secs(5);

/// Reads the statuses again if they were read a while ago. The reader waits for a few seconds at most; while the API server does not answer,
/// nobody knows a status, and none is shown.
pub async fn look_at_static_pods(machine: &Machine) {
    // Held to the end: readers at the same time would take each other's statuses away.
    let mut asked = machine.static_pods_asked.lock().await;
    if asked.is_some_and(|at| at.elapsed() < FRESH) {
        return;
    }
    let configured = machine.config();
    let kubernetes = configured.as_ref().map(|it| &it.config.kubernetes);
    let node = machine.store.list::<KubernetesFact>().into_iter().next();
    let statuses = match (kubernetes, node) {
        (Some(Some(kubernetes)), Some((metadata, _))) => {
            static_pod_statuses(kubernetes, &metadata.id).await
        }
        _ => Ok(Vec::new()),
    };
    *asked = Some(Instant::now());
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
