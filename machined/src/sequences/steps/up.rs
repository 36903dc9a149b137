//! The services by which the next version is judged: it is good when those that are up now are up again.

use std::time::Duration;

use crate::kubernetes::{KUBELET_UP, kubelet_health};
use crate::machine::Machine;
use crate::services::reach;

/// Time limit for kubelet's answer. One that is slower is not healthy, and no version is blamed for it.
const ANSWER: Duration = Duration::from_secs(3);

/// Returns the names of the services that are up; on a node of Kubernetes with kubelet, if it says that it is healthy.
pub(in crate::sequences) async fn up(machine: &Machine) -> Vec<String> {
    let mut up = machine.services.up();
    // Without proven extensions the next generation waits for their images, and says itself what is missing.
    if machine.node_record.get().proven.is_none() {
        return up;
    }
    let configured = machine.config();
    let kubernetes = configured.as_ref().map(|it| &it.config.kubernetes);
    let target = kubernetes.and_then(|it| it.as_ref().and_then(kubelet_health));
    if let Some(target) = target
        && reach(&target, ANSWER).await.is_ok()
    {
        up.push(KUBELET_UP.to_owned());
    }
    up
}
