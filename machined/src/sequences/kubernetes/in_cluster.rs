//! The node in its cluster: asks from time to time whether the cluster takes it for ready, and keeps its labels and annotations right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::control_plane;
use super::meeting::Meeting;
use crate::config::Kubernetes;
use crate::kubernetes::trial::Readiness;
use crate::kubernetes::{
    Mode, NodeMetadata, NodeObject, NodeService, NodeStatus, Refusal, readiness,
};
use crate::machine::{Configured, Machine};
use crate::sequences::is_installed;

/// The cluster's last answer.
pub(super) struct InCluster {
    /// Whether the node is ready.
    pub(super) readiness: Readiness,
    /// Why its labels and annotations are not those of the config.
    pub(super) problem: Option<String>,
    /// The cluster that answered.
    pub(super) meeting: Meeting,
    /// Whether it did not answer the last time.
    is_silent: bool,
    /// When it was asked last, and for which config.
    asked: Option<(Instant, Arc<Configured>)>,
}

/// The state of the node as it is seen on the machine itself.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// Its name.
    pub(super) node: &'a str,
    /// Its services.
    pub(super) services: &'a [NodeService],
    /// The steps of the plan that its container could not carry out.
    pub(super) errors: &'a [String],
}

impl InCluster {
    pub(super) fn new() -> Self {
        InCluster {
            readiness: Readiness::Unknown("nobody has asked yet".to_owned()),
            problem: None,
            meeting: Meeting::default(),
            is_silent: false,
            asked: None,
        }
    }

    /// Notes whether the cluster has answered, and with which object of the node.
    fn meet(&mut self, object: &anyhow::Result<Option<Value>>) {
        let is_silent = object.is_err();
        if let Ok(Some(object)) = object {
            self.meeting.returns += u64::from(self.is_silent);
            let uid = object["metadata"]["uid"].as_str();
            self.meeting.uid = uid.map(str::to_owned);
        }
        self.is_silent = is_silent;
    }

    /// Asks if the last time is longer ago than the interval, or was for another config; returns the time since then, zero if nothing was
    /// asked. That time may have passed before a trial, of which it is no part (`trial::choose`).
    pub(super) async fn ask_if_due(
        &mut self,
        machine: &Machine,
        configured: &Arc<Configured>,
        seen: Seen<'_>,
        interval: Duration,
    ) -> Duration {
        let Some(kubernetes) = &configured.config.kubernetes else {
            return Duration::ZERO;
        };
        let asked = self.asked.as_ref();
        let elapsed = asked.map(|(at, _)| at.elapsed());
        let is_same = asked.is_some_and(|(_, of)| Arc::ptr_eq(of, configured));
        if is_same && elapsed.is_some_and(|elapsed| elapsed < interval) {
            return Duration::ZERO;
        }
        self.asked = Some((Instant::now(), configured.clone()));
        self.ask(machine, kubernetes, seen).await;
        elapsed.unwrap_or_default()
    }

    async fn ask(&mut self, machine: &Machine, kubernetes: &Kubernetes, seen: Seen<'_>) {
        self.problem = None;
        let object = self.object(machine, kubernetes, seen.node).await;
        self.meet(&object);
        show(machine, seen.node, &object);
        let object = object.as_ref().map(Option::as_ref);
        let readiness = readiness(seen.errors, seen.services, object);
        self.readiness = control_plane::judged(kubernetes, readiness);
    }

    /// Reads the node's object, and keeps it right; `None` if the node has not joined.
    async fn object(
        &mut self,
        machine: &Machine,
        kubernetes: &Kubernetes,
        node: &str,
    ) -> anyhow::Result<Option<Value>> {
        let Some(at) = NodeObject::of(&kubernetes.cluster, node)? else {
            return Ok(None);
        };
        let object = at.read().await?;
        let changed = keep_right(machine, kubernetes, &at, &object).await;
        self.problem = changed
            .err()
            .map(|error| format!("the node's labels and annotations: {error:#}"));
        Ok(Some(object))
    }
}

/// Shows the node's object. One that cannot be read leaves the previous object.
fn show(machine: &Machine, node: &str, object: &anyhow::Result<Option<Value>>) {
    match object {
        Ok(Some(object)) => machine.store.put(node, NodeStatus::of(object)),
        Ok(None) => machine.store.remove::<NodeStatus>(node),
        Err(error) if Refusal::of(error).is_some_and(Refusal::is_absence) => {
            machine.store.remove::<NodeStatus>(node);
        }
        Err(_) => {}
    }
}

/// Changes labels and annotations that are not right.
async fn keep_right(
    machine: &Machine,
    kubernetes: &Kubernetes,
    at: &NodeObject,
    object: &Value,
) -> anyhow::Result<()> {
    let mode = mode(machine).await?;
    let configured = machine.config();
    let follows = configured
        .as_ref()
        .and_then(|it| it.config.upgrade_follow.as_ref());
    let channel = follows.map(|follows| follows.channel.to_string());
    let version = &machine.running.version;
    let metadata = NodeMetadata::of(&kubernetes.node, mode, version, channel.as_deref());
    if let Some(change) = metadata.change_of(object) {
        at.change(&change).await?;
        tracing::info!("Kubernetes: the node's labels and annotations are those of its config");
    }
    Ok(())
}

async fn mode(machine: &Machine) -> anyhow::Result<Mode> {
    if is_installed(machine).await? {
        return Ok(Mode::Installed);
    }
    let has_disk = machine.disk.state().is_some();
    Ok(if has_disk { Mode::Live } else { Mode::Diskless })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_is_met_again_after_a_silence_or_with_another_object_of_the_node() {
        let object = |uid: &str| Ok(Some(json!({"metadata": {"uid": uid}})));
        let silence = || Err(anyhow::Error::msg("no answer"));
        let mut cluster = InCluster::new();
        let mut met = |answer: anyhow::Result<Option<Value>>| {
            let before = cluster.meeting.clone();
            cluster.meet(&answer);
            cluster.meeting != before
        };
        assert!(!met(Ok(None)), "it has not joined");
        assert!(met(object("1")), "it has joined");
        assert!(!met(object("1")), "nothing has changed");
        assert!(met(object("2")), "the object is another one");
        assert!(!met(silence()), "nobody knows");
        assert!(!met(silence()), "nobody knows");
        assert!(met(object("2")), "it answers again");
        assert!(!met(object("2")), "nothing has changed");
    }
}
