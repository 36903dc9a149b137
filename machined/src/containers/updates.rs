//! The record of updates: for each container that follows its image's name, the standing of that image.
//!
//! It is kept like the images in force (`in_force.rs`): on STATE, or on /var without a disk, and in the hand-over. A record that is lost is
//! made anew by the next look at the registry, without the approvals.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::update::{Act, Event, Standing};
use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::record_file::RecordFile;
use crate::state_partition::IMAGE_UPDATES;
use crate::values::{Digest, ImageReference};

/// The updates, by container.
pub type Updates = BTreeMap<String, ImageUpdate>;

/// The update of one container's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUpdate {
    /// The image's name in the config. If the config names another image, this entry does not count.
    pub reference: ImageReference,
    /// The standing.
    pub standing: Standing,
}

/// The last look at a registry. It is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at: SystemTime,
    /// Why it told nothing, in one line, if so.
    pub error: Option<String>,
}

/// The record; clones share it.
#[derive(Debug, Clone, Default)]
pub struct ImageUpdates {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    file: RecordFile,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    updates: Updates,
    looks: BTreeMap<String, Look>,
    /// None until [`open`](ImageUpdates::open) has set a directory.
    file: Option<PathBuf>,
}

impl ImageUpdates {
    /// Starts from the record that the previous generation handed over.
    pub fn new(updates: Updates) -> Self {
        let record = Self::default();
        record.lock().updates = updates;
        record
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.locked()
    }

    /// Keeps the record in this directory from now on. A record that is there already is newer than a handed-over one, and replaces it.
    pub fn open(&self, directory: &Path) -> anyhow::Result<()> {
        let file = directory.join(IMAGE_UPDATES.name);
        let read = whole_file::read_json(&file);
        let mut state = self.lock();
        state.file = Some(file);
        if let Some(read) = read? {
            state.updates = read;
        }
        Ok(())
    }

    /// Returns the standing of a container's image of this name.
    pub fn standing(&self, container: &str, reference: &ImageReference) -> Standing {
        let state = self.lock();
        let known = state.updates.get(container);
        known
            .filter(|known| known.reference == *reference)
            .map(|known| known.standing.clone())
            .unwrap_or_default()
    }

    /// Reports an event, and returns the act that follows from it.
    pub async fn report(
        &self,
        container: &str,
        reference: &ImageReference,
        event: Event,
    ) -> Option<Act> {
        let before = self.standing(container, reference);
        let (standing, act) = before.clone().after(event);
        if standing != before {
            let update = ImageUpdate {
                reference: reference.clone(),
                standing,
            };
            self.lock().updates.insert(container.to_owned(), update);
            self.changed().await;
        }
        act
    }

    /// Drops the entries of all other containers.
    pub async fn retain(&self, containers: &BTreeSet<String>) {
        let has_changed = {
            let mut state = self.lock();
            let before = state.updates.len();
            state.updates.retain(|name, _| containers.contains(name));
            state.looks.retain(|name, _| containers.contains(name));
            state.updates.len() != before
        };
        if has_changed {
            self.changed().await;
        }
    }

    /// Notes a look at a registry.
    pub fn looked(&self, container: &str, error: Option<String>) {
        let at = SystemTime::now();
        let look = Look { at, error };
        self.lock().looks.insert(container.to_owned(), look);
    }

    /// Returns the last look at the registry for a container.
    pub fn last_look(&self, container: &str) -> Option<Look> {
        self.lock().looks.get(container).cloned()
    }

    /// Returns the whole record.
    pub fn all(&self) -> Updates {
        self.lock().updates.clone()
    }

    /// Returns the digests that must not be collected.
    pub fn needed(&self) -> BTreeSet<Digest> {
        let state = self.lock();
        let updates = state.updates.values();
        updates
            .flat_map(|update| update.standing.needed())
            .collect()
    }

    /// Returns a receiver that is notified about every change.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Writes the file. If that fails, the record holds until machined ends.
    async fn changed(&self) {
        self.shared.changes.send_replace(());
        let newest = || {
            let state = self.lock();
            (state.file.clone(), state.updates.clone())
        };
        let loss = "which updates of images wait is kept in memory alone";
        self.shared.file.write(IMAGE_UPDATES, loss, newest).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::ImageDigests;
    use crate::containers::update::{Release, Verdict};

    #[tokio::test]
    async fn a_standing_is_kept_for_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let name: ImageReference = "r.io/web:v1".parse().unwrap();
        let other: ImageReference = "r.io/web:v2".parse().unwrap();
        let image = |name: &[u8]| ImageDigests {
            digest: Digest::of(name),
            index: Some(Digest::of(&[b"index of ", name].concat())),
        };
        let (old, new) = (image(b"old"), image(b"new"));
        let found = Event::Found {
            found: Release {
                digest: new.digest,
                index: new.index,
                version: None,
                created: None,
            },
            verdict: Verdict::Rebuild,
        };
        let record = ImageUpdates::default();
        record.open(directory.path()).unwrap();
        assert_eq!(record.report("web", &name, found).await, None);
        let act = record.report("web", &name, Event::MaySwitch(old)).await;
        assert_eq!(act, Some(Act::Switch(new)));

        // Another machined goes on with the trial.
        let again = ImageUpdates::default();
        again.open(directory.path()).unwrap();
        assert_eq!(again.needed(), BTreeSet::from([old.digest, new.digest]));
        assert_eq!(again.standing("web", &other), Standing::Current);
        let act = again.report("web", &name, Event::Failed("it died".into()));
        assert_eq!(act.await, Some(Act::Return(old)));
        again.retain(&BTreeSet::new()).await;
        assert!(again.all().is_empty());
    }
}
