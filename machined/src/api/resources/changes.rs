//! The changes that a watcher waits for, and the differences that it is sent after them.
//!
//! A watcher is sent the differences from the resources that it was sent last. Changes that come faster than it reads are merged into
//! one: no domain waits for a watcher, and a watch holds no more than one copy of its resources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use crate::disk::OwnedDiskStatus;
use crate::machine::{Configured, Machine};
use crate::network::NetworkStatus;

use super::kind::Source;
use super::listing::Listed;
use crate::store::Change;

/// Interval for reading state whose changes are not announced.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// Interval for reading the nodes of the cluster, and the statuses of static pods.
const ASK_CLUSTER: Duration = Duration::from_secs(30);

/// The channels that announce changes of a kind's resources.
pub struct Changes {
    types: Vec<&'static str>,
    store: Option<broadcast::Receiver<Change>>,
    network: Option<watch::Receiver<NetworkStatus>>,
    disk: Option<watch::Receiver<OwnedDiskStatus>>,
    config: Option<watch::Receiver<Option<Arc<Configured>>>>,
    /// The interval for reading, if some changes are not announced.
    look_again: Option<Duration>,
}

impl Changes {
    /// Subscribes to changes from now on.
    pub fn of(machine: &Machine, sources: &[Source]) -> Self {
        let types: Vec<&'static str> = sources
            .iter()
            .filter_map(|source| match source {
                Source::Store(kind) => Some(*kind),
                _ => None,
            })
            .collect();
        let has = |source| sources.contains(&source);
        let mut changes = Changes {
            store: (!types.is_empty()).then(|| machine.store.watch()),
            types,
            network: has(Source::Network).then(|| machine.network.status()),
            disk: has(Source::Disk).then(|| machine.disk.status()),
            config: has(Source::Config).then(|| machine.watch_config()),
            look_again: match (
                has(Source::Unannounced),
                has(Source::Cluster) || has(Source::StaticPods),
            ) {
                (true, _) => Some(LOOK_AGAIN),
                (false, true) => Some(ASK_CLUSTER),
                (false, false) => None,
            },
        };
        // A clone's "last seen" is the original's, which may be older than the state that is read now.
        if let Some(network) = &mut changes.network {
            network.mark_unchanged();
        }
        changes
    }

    /// Waits until the resources have to be read again.
    pub async fn next(&mut self) {
        let (types, network) = (&self.types, &mut self.network);
        let (store, disk, config) = (&mut self.store, &mut self.disk, &mut self.config);
        let look_again = self.look_again.unwrap_or_default();
        tokio::select! {
            () = changed_in_store(store, types) => {}
            () = changed(network) => {}
            () = changed(disk) => {}
            () = changed(config) => {}
            () = tokio::time::sleep(look_again), if self.look_again.is_some() => {}
        }
    }
}

async fn changed_in_store(store: &mut Option<broadcast::Receiver<Change>>, types: &[&'static str]) {
    let Some(store) = store else {
        return std::future::pending().await;
    };
    loop {
        match store.recv().await {
            Ok(change) if !types.contains(&change.kind) => {}
            // A lagging receiver has missed changes, so the resources are read.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

async fn changed<T>(state: &mut Option<watch::Receiver<T>>) {
    let told = match state {
        Some(state) => state.changed().await.is_ok(),
        None => false,
    };
    // There is no such channel, or its sender is gone, so that no change can come.
    if !told {
        std::future::pending().await
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The resource is new.
    Created(Listed),
    /// The resource has changed: its new and its old content.
    Updated(Listed, Listed),
    /// The resource is gone: its last content.
    Destroyed(Listed),
}

/// The resources that a watcher was sent last.
#[derive(Debug, Default)]
pub struct LastSent(BTreeMap<String, Listed>);

impl LastSent {
    /// Returns the differences to `now`, in the order of ids. After that, `now` counts as sent.
    pub fn differences(&mut self, now: Vec<Listed>) -> Vec<Difference> {
        let mut before = std::mem::take(&mut self.0);
        let mut differences = Vec::new();
        for listed in now {
            match before.remove(&listed.metadata.id) {
                None => differences.push(Difference::Created(listed.clone())),
                // A resource that was deleted and made again meanwhile is another one.
                Some(old) if old.metadata.created != listed.metadata.created => {
                    differences.push(Difference::Destroyed(old));
                    differences.push(Difference::Created(listed.clone()));
                }
                Some(old) if old.metadata.version != listed.metadata.version => {
                    differences.push(Difference::Updated(listed.clone(), old));
                }
                Some(_) => {}
            }
            self.0.insert(listed.metadata.id.clone(), listed);
        }
        differences.extend(before.into_values().map(Difference::Destroyed));
        differences
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::store::Metadata;

    fn listed(id: &str, version: u64, created: u64) -> Listed {
        let created = SystemTime::UNIX_EPOCH + Duration::from_secs(created);
        Listed {
            metadata: Metadata {
                id: id.to_owned(),
                version,
                created,
                updated: created,
            },
            yaml: format!("{id}{version}"),
            protobuf: Vec::new(),
            annotations: &[],
        }
    }

    #[test]
    fn only_what_is_different_is_told() {
        let mut last_sent = LastSent::default();
        let (a, b) = (listed("a", 1, 0), listed("b", 1, 0));
        let first = last_sent.differences(vec![a.clone(), b.clone()]);
        assert_eq!(
            first,
            [
                Difference::Created(a.clone()),
                Difference::Created(b.clone())
            ]
        );
        assert_eq!(last_sent.differences(vec![a.clone(), b.clone()]), []);
        // Two changes between two reads are one.
        let a3 = listed("a", 3, 0);
        assert_eq!(
            last_sent.differences(vec![a3.clone()]),
            [Difference::Updated(a3.clone(), a), Difference::Destroyed(b)]
        );
        let another = listed("a", 3, 9);
        assert_eq!(
            last_sent.differences(vec![another.clone()]),
            [Difference::Destroyed(a3), Difference::Created(another)]
        );
    }

    #[tokio::test]
    async fn a_watcher_wakes_for_its_own_types_and_when_it_has_missed_some() {
        let store = crate::store::Store::default();
        let mut changes = Some(store.watch());
        let put = |ready| {
            let fact = crate::store::NetworkFact {
                address_ready: ready,
                ..Default::default()
            };
            store.put("status", fact);
        };
        let types = ["Services.v1alpha1.talos.dev"];
        put(true);
        let woken = changed_in_store(&mut changes, &types);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), woken)
                .await
                .is_err()
        );
        for round in 0..1000 {
            put(round % 2 == 0);
        }
        changed_in_store(&mut changes, &types).await;
    }
}
