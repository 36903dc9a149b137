//! The record of updates: for each container that follows its image's name, the standing of that image.
//!
//! It is kept like the images in force (`in_force.rs`): on STATE, or on /var without a disk, and in the hand-over. A record that is lost is
//! made anew by the next look at the registry, without the approvals.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::update::{Act, Event, Standing};
use crate::record_file::KeptRecord;
use crate::state_partition::IMAGE_UPDATES;
use crate::values::{Digest, ImageReference};

/// Limit on images that failed and are remembered, for each container; the oldest are forgotten.
const MOST_FAILED: usize = 8;

/// The updates, by container.
pub type Updates = BTreeMap<String, ImageUpdate>;

/// The update of one container's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUpdate {
    /// The image's name in the config. If the config names another image, this entry does not count.
    pub reference: ImageReference,
    /// The standing.
    pub standing: Standing,
    /// The images that failed on trial, oldest first. They stay known when another image is behind the name, as at a mirror that is late.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedOnTrial>,
}

/// An image that failed on trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedOnTrial {
    /// Its digest.
    pub digest: Digest,
    /// Why, in words.
    pub why: String,
}

impl ImageUpdate {
    /// An image of this name of which nothing is known.
    fn new(reference: ImageReference) -> Self {
        ImageUpdate {
            reference,
            standing: Standing::Current,
            failed: Vec::new(),
        }
    }

    /// Returns the update after an event, and the act that follows from it. An image that fails is noted, until it is approved or put in force
    /// by an operator.
    fn after(mut self, event: Event) -> (Self, Option<Act>) {
        if let Event::Approved(digest) | Event::LookedUp(digest) = &event {
            self.failed.retain(|failed| failed.digest != *digest);
        }
        let (standing, act) = self.standing.after(event);
        if let (Standing::Returned { failed, why }, Some(Act::Return(_))) = (&standing, &act) {
            self.failed.retain(|known| known.digest != failed.digest);
            self.failed.push(FailedOnTrial {
                digest: failed.digest,
                why: why.clone(),
            });
            let surplus = self.failed.len().saturating_sub(MOST_FAILED);
            self.failed.drain(..surplus);
        }
        (ImageUpdate { standing, ..self }, act)
    }
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
    kept: KeptRecord<State>,
}

#[derive(Debug, Default)]
struct State {
    updates: Updates,
    looks: BTreeMap<String, Look>,
}

impl ImageUpdates {
    /// Starts from the record that the previous generation handed over.
    pub fn new(updates: Updates) -> Self {
        let record = Self::default();
        record.kept.lock().updates = updates;
        record
    }

    /// Keeps the record in this directory from now on. A record that is there already is newer than a handed-over one, and replaces it.
    pub fn open(&self, directory: &Path) -> anyhow::Result<()> {
        let take = |state: &mut State, read| state.updates = read;
        self.kept.open(IMAGE_UPDATES, directory, take)
    }

    /// Returns the standing of a container's image of this name.
    pub fn standing(&self, container: &str, reference: &ImageReference) -> Standing {
        self.update(container, reference).standing
    }

    /// Returns why an image failed on trial for a container of this name, if it did.
    pub fn failure(
        &self,
        container: &str,
        reference: &ImageReference,
        digest: Digest,
    ) -> Option<String> {
        let mut failed = self.update(container, reference).failed.into_iter();
        Some(failed.find(|failed| failed.digest == digest)?.why)
    }

    fn update(&self, container: &str, reference: &ImageReference) -> ImageUpdate {
        let state = self.kept.lock();
        let known = state.updates.get(container);
        let known = known.filter(|known| known.reference == *reference);
        known.map_or_else(|| ImageUpdate::new(reference.clone()), Clone::clone)
    }

    /// Reports an event, and returns the act that follows from it.
    pub async fn report(
        &self,
        container: &str,
        reference: &ImageReference,
        event: Event,
    ) -> Option<Act> {
        let before = self.update(container, reference);
        let (update, act) = before.clone().after(event);
        if update != before {
            self.kept
                .lock()
                .updates
                .insert(container.to_owned(), update);
            self.changed().await;
        }
        act
    }

    /// Drops the entries of all other containers.
    pub async fn retain(&self, containers: &BTreeSet<String>) {
        let has_changed = {
            let mut state = self.kept.lock();
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
        self.kept.lock().looks.insert(container.to_owned(), look);
    }

    /// Returns the last look at the registry for a container.
    pub fn last_look(&self, container: &str) -> Option<Look> {
        self.kept.lock().looks.get(container).cloned()
    }

    /// Returns the whole record.
    pub fn all(&self) -> Updates {
        self.kept.lock().updates.clone()
    }

    /// Returns the digests that must not be collected.
    pub fn needed(&self) -> BTreeSet<Digest> {
        let state = self.kept.lock();
        let updates = state.updates.values();
        updates
            .flat_map(|update| update.standing.needed())
            .collect()
    }

    /// Returns a receiver that is notified about every change.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.kept.watch()
    }

    /// Writes the file. If that fails, the record holds until machined ends.
    async fn changed(&self) {
        self.kept.tell();
        let loss = "which updates of images wait is kept in memory alone";
        let written = |state: &State| state.updates.clone();
        self.kept.write(IMAGE_UPDATES, loss, written).await;
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
        let switch = Event::MaySwitch {
            in_force: old,
            boot: "one".to_owned(),
        };
        let act = record.report("web", &name, switch).await;
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

    fn release(name: &str) -> Release {
        Release {
            digest: Digest::of(name.as_bytes()),
            index: None,
            version: None,
            created: None,
        }
    }

    /// The image is found, tried, and fails.
    fn failed_trial(name: &str) -> [Event; 3] {
        let in_force = ImageDigests {
            digest: Digest::of(b"old"),
            index: None,
        };
        let found = Event::Found {
            found: release(name),
            verdict: Verdict::Rebuild,
        };
        let boot = "one".to_owned();
        let switch = Event::MaySwitch { in_force, boot };
        [found, switch, Event::Failed(format!("{name} died"))]
    }

    #[tokio::test]
    async fn an_image_that_failed_stays_known_until_it_is_approved_or_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let name: ImageReference = "r.io/web:v1".parse().unwrap();
        let record = ImageUpdates::default();
        record.open(directory.path()).unwrap();
        let bad = release("bad").digest;
        let failure = |of: &ImageUpdates| of.failure("web", &name, bad);
        // A mirror that is late has the image in force.
        let confirmed = [Event::Confirmed];
        for event in failed_trial("bad").into_iter().chain(confirmed) {
            record.report("web", &name, event).await;
        }
        assert_eq!(record.standing("web", &name), Standing::Current);
        let again = ImageUpdates::default();
        again.open(directory.path()).unwrap();
        assert_eq!(failure(&again).as_deref(), Some("bad died"));
        assert_eq!(again.failure("web", &name, release("good").digest), None);
        for known_no_more in [Event::Approved(bad), Event::LookedUp(bad)] {
            for event in failed_trial("bad") {
                again.report("web", &name, event).await;
            }
            assert!(failure(&again).is_some());
            again.report("web", &name, known_no_more).await;
            assert_eq!(failure(&again), None);
        }
    }

    #[tokio::test]
    async fn the_last_images_that_failed_are_known() {
        let name: ImageReference = "r.io/web:v1".parse().unwrap();
        let record = ImageUpdates::default();
        let all: Vec<String> = (0..=MOST_FAILED).map(|it| format!("bad {it}")).collect();
        for event in all.iter().flat_map(|image| failed_trial(image)) {
            record.report("web", &name, event).await;
        }
        let known = |image: &String| {
            record
                .failure("web", &name, release(image).digest)
                .is_some()
        };
        assert!(!known(&all[0]) && all[1..].iter().all(known));
    }
}
