//! The store of facts for the modules above: a map from (type, id) to the newest version of a resource, with a bounded stream of changes.
//! Services publish their own state; `status` publishes that of the network and of the clock.
//!
//! A fact lives as long as its generation. Values that only the API shows are not in the store: they are made when a client asks for them
//! (`api/resources`).

pub mod event_log;
mod extension_fact;
mod facts;
mod observed_versions;

pub use extension_fact::{ExtensionFact, ExtensionState, ExtensionTarget};
pub use facts::{
    ClockFact, MachineStage, MachineStatus, NetworkFact, Problem, ServiceFact, StaleConfig,
};
pub use observed_versions::ObservedVersions;

use crate::base::lock::Lock as _;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use serde::Serialize;
use tokio::sync::broadcast;

/// A type of fact that one domain publishes and others read.
pub trait Resource: Serialize + Clone + PartialEq + Send + Sync + 'static {
    /// The namespace in which the API shows it.
    const NAMESPACE: &'static str;
    /// The type's full name, `Plural.group.talos.dev` where clients know it.
    const TYPE: &'static str;
}

/// A resource's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Identity within its type.
    pub id: String,
    /// 1 at creation; incremented with each change of content.
    pub version: u64,
    /// When it was first put.
    pub created: SystemTime,
    /// When its content last changed.
    pub updated: SystemTime,
}

/// A change, for watchers. The content is read from the store, so a slow watcher sees the newest one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The resource's type.
    pub kind: &'static str,
    /// The resource's id.
    pub id: String,
}

struct Entry {
    metadata: Metadata,
    spec: Arc<dyn Any + Send + Sync>,
}

/// Limit on changes that a watcher may fall behind; then it has to read the store again.
const CHANGE_BACKLOG: usize = 256;

/// The store; clones share one content.
#[derive(Clone)]
pub struct Store {
    entries: Arc<Mutex<BTreeMap<(&'static str, String), Entry>>>,
    changes: broadcast::Sender<Change>,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            entries: Arc::default(),
            changes: broadcast::channel(CHANGE_BACKLOG).0,
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), Entry>> {
        // No code panics while it holds this lock, and even then the map would be consistent.
        self.entries.locked()
    }

    /// Publishes the content of a resource. Equal content changes nothing and wakes no watcher.
    pub fn put<R: Resource>(&self, id: &str, spec: R) {
        let now = SystemTime::now();
        {
            let mut entries = self.lock();
            let key = (R::TYPE, id.to_owned());
            let metadata = match entries.get(&key) {
                Some(old) if old.spec.downcast_ref::<R>() == Some(&spec) => return,
                Some(old) => Metadata {
                    version: old.metadata.version + 1,
                    updated: now,
                    ..old.metadata.clone()
                },
                None => Metadata {
                    id: id.to_owned(),
                    version: 1,
                    created: now,
                    updated: now,
                },
            };
            entries.insert(
                key,
                Entry {
                    metadata,
                    spec: Arc::new(spec),
                },
            );
        }
        self.announce::<R>(id);
    }

    /// Removes a resource, if there is one.
    pub fn remove<R: Resource>(&self, id: &str) {
        if self.lock().remove(&(R::TYPE, id.to_owned())).is_some() {
            self.announce::<R>(id);
        }
    }

    /// Removes the resources of a type but those whose id is to stay.
    pub fn retain<R: Resource>(&self, stays: impl Fn(&str) -> bool) {
        self.retain_by_content::<R>(|id, _| stays(id));
    }

    /// Removes the resources of a type but those that are to stay, by their ids and contents.
    pub fn retain_by_content<R: Resource>(&self, stays: impl Fn(&str, &R) -> bool) {
        for (metadata, content) in self.list::<R>() {
            if !stays(&metadata.id, &content) {
                self.remove::<R>(&metadata.id);
            }
        }
    }

    /// Returns the newest content of a resource, if there is one.
    pub fn get<R: Resource>(&self, id: &str) -> Option<R> {
        self.lock()
            .get(&(R::TYPE, id.to_owned()))?
            .spec
            .downcast_ref::<R>()
            .cloned()
    }

    /// Returns all resources of a type, sorted by id.
    pub fn list<R: Resource>(&self) -> Vec<(Metadata, R)> {
        self.lock()
            .range((R::TYPE, String::new())..)
            .take_while(|((kind, _), _)| *kind == R::TYPE)
            .filter_map(|(_, entry)| {
                Some((
                    entry.metadata.clone(),
                    entry.spec.downcast_ref::<R>()?.clone(),
                ))
            })
            .collect()
    }

    /// Watches changes. A receiver that lags gets `Lagged` and has to read the store again.
    pub fn watch(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Waits until a condition over one resource holds.
    pub async fn wait_for<R: Resource>(&self, id: &str, holds: impl Fn(Option<&R>) -> bool) {
        let mut changes = self.watch();
        while !holds(self.get::<R>(id).as_ref()) {
            // Lagged or not: a change happened, so look again. The channel cannot be closed: `self` holds a sender.
            let _ = changes.recv().await;
        }
    }

    fn announce<R: Resource>(&self, id: &str) {
        // An error only means that there is no watcher.
        let _ = self.changes.send(Change {
            kind: R::TYPE,
            id: id.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Clone, PartialEq, Serialize, Debug)]
    struct Lamp {
        on: bool,
    }
    impl Resource for Lamp {
        const NAMESPACE: &'static str = "test";
        const TYPE: &'static str = "Lamps.test";
    }
    #[derive(Clone, PartialEq, Serialize, Debug)]
    struct Other;
    impl Resource for Other {
        const NAMESPACE: &'static str = "test";
        const TYPE: &'static str = "Lamps.testing";
    }

    #[test]
    fn versions_count_changes_of_content_only() {
        let store = Store::default();
        let mut changes = store.watch();
        store.put("a", Lamp { on: false });
        store.put("a", Lamp { on: false });
        store.put("a", Lamp { on: true });
        let (metadata, lamp) = store.list::<Lamp>().pop().unwrap();
        assert_eq!((metadata.version, lamp.on), (2, true));
        assert_eq!(changes.try_recv().unwrap().id, "a");
        assert!(changes.try_recv().is_ok());
        assert!(changes.try_recv().is_err());
    }

    #[test]
    fn a_list_holds_its_own_type_only() {
        let store = Store::default();
        store.put("a", Lamp { on: false });
        store.put("b", Lamp { on: false });
        store.put("c", Other);
        store.remove::<Lamp>("a");
        assert_eq!(store.list::<Lamp>().len(), 1);
        assert!(store.get::<Lamp>("c").is_none());
    }

    #[tokio::test]
    async fn a_waiter_wakes_when_the_condition_comes_true() {
        let store = Store::default();
        let other = store.clone();
        let waiter = tokio::spawn(async move {
            other
                .wait_for::<Lamp>("a", |lamp| lamp.is_some_and(|l| l.on))
                .await
        });
        for round in 0..CHANGE_BACKLOG * 2 {
            store.put("noise", Lamp { on: round % 2 == 0 });
        }
        store.put("a", Lamp { on: true });
        waiter.await.unwrap();
    }
}
