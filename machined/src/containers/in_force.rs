//! The images in force: for each container, the digest that its image's name meant when it was looked up.
//!
//! A container runs a digest. A tag is resolved when a container first starts, and again only on request: by another name in the
//! config, or by a restart over the API. After another change of the config, a crash, an upgrade or a reboot the same digest starts again.
//!
//! While a config is on trial, the entries that it loses are put aside: file and hand-over have them, as they have the settled config, and the
//! end of the trial puts them in force again.
//!
//! ```text
//! file      restarts of machined; with a disk (it is on STATE) everything else too
//! hand-over upgrades without a reboot of machines without a disk, whose files end with their generation
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::image_digests::ImageDigests;
use crate::record_file::KeptRecord;
use crate::state_partition::IMAGES_IN_FORCE;
use crate::values::Digest;
use crate::values::ImageReference;

/// The images in force, by container.
pub type InForce = BTreeMap<String, ImageInForce>;

/// The names of a config's images, by container.
pub type Named = BTreeMap<String, ImageReference>;

/// The image of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInForce {
    /// The image's name in the config. If the config names another image, this entry does not count.
    pub reference: ImageReference,
    /// The digest that the name was resolved to.
    pub digest: Digest,
    /// The digest of the index that the name pointed to, if it is known and there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Digest>,
}

impl ImageInForce {
    fn digests(&self) -> ImageDigests {
        ImageDigests {
            digest: self.digest,
            index: self.index,
        }
    }
}

/// The record of the images in force; clones share it.
#[derive(Debug, Clone, Default)]
pub struct ImagesInForce {
    kept: KeptRecord<State>,
}

#[derive(Debug, Default)]
struct State {
    images: InForce,
    /// The entries of the settled config that a config on trial has lost.
    aside: InForce,
}

impl State {
    /// The record that counts without the trial.
    fn settled(&self) -> InForce {
        let mut images = self.images.clone();
        images.extend(self.aside.clone());
        images
    }

    /// See [`ImagesInForce::take_over`]. Returns whether anything has changed.
    fn take_over<'a>(
        &mut self,
        lost: impl IntoIterator<Item = &'a String>,
        named: &Named,
        settled: Option<&Named>,
    ) -> bool {
        let is_of = |named: &Named, container: &str, image: &ImageInForce| {
            named.get(container) == Some(&image.reference)
        };
        let before = (self.images.clone(), self.aside.clone());
        for container in lost {
            let Some(image) = self.images.remove(container) else {
                continue;
            };
            if settled.is_some_and(|settled| is_of(settled, container, &image)) {
                self.aside.insert(container.clone(), image);
            }
        }
        for (container, image) in std::mem::take(&mut self.aside) {
            if is_of(named, &container, &image) {
                self.images.insert(container, image);
            } else if settled.is_some() {
                self.aside.insert(container, image);
            }
        }
        before != (self.images.clone(), self.aside.clone())
    }
}

impl ImagesInForce {
    /// Starts from the record that the previous generation handed over.
    pub fn new(images: InForce) -> Self {
        let record = Self::default();
        record.kept.lock().images = images;
        record
    }

    /// Keeps the record in this directory from now on. The entries of a record that is there already are newer, and replace the
    /// handed-over ones.
    pub fn open(&self, directory: &Path) -> anyhow::Result<()> {
        let take = |state: &mut State, read: InForce| state.images.extend(read);
        self.kept.open(IMAGES_IN_FORCE, directory, take)
    }

    /// Returns the digest that a container is to run, if this name has been looked up for it.
    pub fn get(&self, container: &str, reference: &ImageReference) -> Option<Digest> {
        Some(self.image(container, reference)?.digest)
    }

    /// Returns the same with the digest of its index, by which its registry is asked for it again.
    pub fn image(&self, container: &str, reference: &ImageReference) -> Option<ImageDigests> {
        let state = self.kept.lock();
        let image = state.images.get(container)?;
        (image.reference == *reference).then(|| image.digests())
    }

    /// Puts an image in force. An index that is known of this image stays known.
    pub async fn set(&self, container: &str, reference: &ImageReference, image: ImageDigests) {
        let has_changed = {
            let mut state = self.kept.lock();
            let before = state.images.get(container);
            let known = before.filter(|before| before.reference == *reference);
            let image = image.or_index_of(known.map(ImageInForce::digests));
            let image = ImageInForce {
                reference: reference.clone(),
                digest: image.digest,
                index: image.index,
            };
            let has_changed = before != Some(&image);
            state.images.insert(container.to_owned(), image);
            has_changed
        };
        if has_changed {
            self.changed().await;
        }
    }

    /// Notes the index of an image, if that image is in force: records of older versions do not have it, and a name that moves to another
    /// index may mean the same image.
    pub async fn note_index(
        &self,
        container: &str,
        reference: &ImageReference,
        image: ImageDigests,
    ) {
        if self.get(container, reference) == Some(image.digest) {
            self.set(container, reference, image).await;
        }
    }

    /// Follows a change of the config. The entries of the containers that are `lost` do not count any more: their images are looked up again
    /// at their next start. `named`: the images of the new config; `settled`: those of the config to return to, if the new one is on trial.
    /// What that one loses is put aside, and in force again with a config that names it; a config that stays ends this.
    pub async fn take_over(
        &self,
        lost: impl IntoIterator<Item = &String>,
        named: &Named,
        settled: Option<&Named>,
    ) {
        let has_changed = self.kept.lock().take_over(lost, named, settled);
        if has_changed {
            self.changed().await;
        }
    }

    /// Returns the whole record.
    pub fn all(&self) -> InForce {
        self.kept.lock().images.clone()
    }

    /// Returns the record as it is without a config on trial, for the next generation.
    pub fn settled(&self) -> InForce {
        self.kept.lock().settled()
    }

    /// Returns all digests in force, and those that are once a trial is over.
    pub fn digests(&self) -> BTreeSet<Digest> {
        let state = self.kept.lock();
        let images = state.images.values().chain(state.aside.values());
        images.map(|image| image.digest).collect()
    }

    /// Lists the containers that run this digest, or run it once a trial is over.
    pub fn containers_of(&self, digest: Digest) -> Vec<String> {
        let state = self.kept.lock();
        let images = state.images.iter().chain(&state.aside);
        let of_it = images.filter(|(_, it)| it.digest == digest);
        of_it.map(|(container, _)| container.clone()).collect()
    }

    /// Returns a receiver that is notified about every change.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.kept.watch()
    }

    /// Writes the file. If that fails, the record holds until machined ends; containers run all the same.
    async fn changed(&self) {
        self.kept.tell();
        let loss = "which images are in force is kept in memory alone";
        self.kept.write(IMAGES_IN_FORCE, loss, State::settled).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::whole_file;

    fn name(text: &str) -> ImageReference {
        text.parse().unwrap()
    }

    fn image(digest: Digest) -> ImageDigests {
        ImageDigests {
            digest,
            index: None,
        }
    }

    #[tokio::test]
    async fn a_digest_holds_for_its_name_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let record = ImagesInForce::default();
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        // Before the record has a directory.
        record.set("web", &name("r.io/web:v1"), image(one)).await;
        record.open(directory.path()).unwrap();
        record.set("db", &name("r.io/db:v1"), image(two)).await;
        assert_eq!(record.get("web", &name("r.io/web:v1")), Some(one));
        assert_eq!(record.get("web", &name("r.io/web:v2")), None);
        assert_eq!(record.containers_of(two), ["db"]);

        // Another machined.
        let again = ImagesInForce::default();
        again.open(directory.path()).unwrap();
        assert_eq!(again.all(), record.all());
        let named = Named::new();
        again.take_over([&"web".to_owned()], &named, None).await;
        let again = ImagesInForce::default();
        again.open(directory.path()).unwrap();
        assert_eq!(again.digests(), BTreeSet::from([two]));
    }

    fn named(web: &str) -> Named {
        Named::from([("web".to_owned(), name(web))])
    }

    /// The configs of a trial, one after the other → the entries in force, and those of the file, which a reboot finds.
    #[tokio::test]
    async fn a_trial_that_is_over_brings_back_the_image_that_ran_before() {
        const STABLE: &str = "r.io/web:stable";
        const NEXT: &str = "r.io/web:next";
        let web = "web".to_owned();
        let before = Digest::of(b"approved");
        // Whether each config is on trial, and its image.
        #[rustfmt::skip]
        let table: [(&[(bool, &str)], _, _); 6] = [
            (&[(true, NEXT)],                             None,         Some(before)),
            (&[(true, NEXT), (false, STABLE)],            Some(before), Some(before)),
            (&[(true, NEXT), (true, STABLE)],             Some(before), Some(before)),
            (&[(true, NEXT), (true, "r.io/web:other")],   None,         Some(before)),
            (&[(true, NEXT), (false, NEXT)],              None,         None),
            (&[(false, NEXT), (false, STABLE)],           None,         None),
        ];
        for (configs, in_force, on_disk) in table {
            let directory = tempfile::tempdir().unwrap();
            let record = ImagesInForce::default();
            record.open(directory.path()).unwrap();
            record.set("web", &name(STABLE), image(before)).await;
            let settled = named(STABLE);
            for (is_on_trial, config) in configs {
                let settled = is_on_trial.then_some(&settled);
                record.take_over([&web], &named(config), settled).await;
                // The containers of a trial have entries of their own.
                if *config != STABLE {
                    let tried = image(Digest::of(config.as_bytes()));
                    record.set("web", &name(config), tried).await;
                }
            }
            let again = ImagesInForce::default();
            again.open(directory.path()).unwrap();
            assert_eq!(record.get("web", &name(STABLE)), in_force, "{configs:?}");
            assert_eq!(again.get("web", &name(STABLE)), on_disk, "{configs:?}");
            assert_eq!(record.settled(), again.all(), "{configs:?}");
            let is_needed = record.digests().contains(&before);
            assert_eq!(is_needed, on_disk.is_some(), "{configs:?}");
        }
    }

    #[tokio::test]
    async fn what_was_handed_over_holds_where_the_file_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let written = ImagesInForce::default();
        written.open(directory.path()).unwrap();
        written.set("web", &name("r.io/web"), image(new)).await;

        let handed_over = ImagesInForce::default();
        for container in ["web", "db"] {
            handed_over
                .set(container, &name("r.io/web"), image(old))
                .await;
        }
        let record = ImagesInForce::new(handed_over.all());
        record.open(directory.path()).unwrap();
        assert_eq!(record.get("web", &name("r.io/web")), Some(new));
        assert_eq!(record.get("db", &name("r.io/web")), Some(old));
    }

    #[tokio::test]
    async fn a_record_that_cannot_be_read_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(IMAGES_IN_FORCE.name), "{").unwrap();
        let record = ImagesInForce::default();
        assert!(record.open(directory.path()).is_err());
        record
            .set("web", &name("r.io/web"), image(Digest::of(b"1")))
            .await;
        let again = ImagesInForce::default();
        again.open(directory.path()).unwrap();
        assert_eq!(again.all(), record.all());
    }

    /// An entry as the version before this one reads and writes it.
    #[derive(Serialize, Deserialize)]
    struct Older {
        reference: ImageReference,
        digest: Digest,
    }

    #[tokio::test]
    async fn an_index_is_kept_beside_the_digest_and_older_versions_read_past_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(IMAGES_IN_FORCE.name);
        let (web, digest) = (name("r.io/web:v1"), Digest::of(b"manifest"));
        let index = Some(Digest::of(b"index"));
        let older = BTreeMap::from([(
            "web",
            Older {
                reference: web.clone(),
                digest,
            },
        )]);
        whole_file::replace_json(&file, 0o600, &older).unwrap();
        let record = ImagesInForce::default();
        record.open(directory.path()).unwrap();
        assert_eq!(record.image("web", &web), Some(image(digest)));

        let known = ImageDigests { digest, index };
        record.note_index("web", &web, known).await;
        // Another image is not in force, and one of the same digest takes nothing away.
        let other = image(Digest::of(b"other"));
        record.note_index("web", &web, other).await;
        record.set("web", &web, image(digest)).await;
        let again = ImagesInForce::default();
        again.open(directory.path()).unwrap();
        assert_eq!(again.image("web", &web), Some(known));
        let older: BTreeMap<String, Older> = whole_file::read_json(&file).unwrap().unwrap();
        assert_eq!(older["web"].digest, digest);

        record.set("web", &web, other).await;
        assert_eq!(record.image("web", &web), Some(other));
    }
}
