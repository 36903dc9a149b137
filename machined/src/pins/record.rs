//! The record of pinned images: those that callers have pinned, and the digests that all names meant when they were pinned.
//!
//! It is kept like the images in force (`containers/in_force.rs`): on STATE, or on /var without a disk, and in the hand-over.
//!
//! ```text
//! by the config    for as long as the config names it
//! by a call        until it is unpinned, or an upgrade to another version than the one that ran then has been committed
//! by an upgrade    the same, or the upgrade that was prepared has been committed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::preparation::Preparation;
use super::terms::Terms;
use crate::containers::ImageDigests;
use crate::record_file::KeptRecord;
use crate::state_partition::IMAGE_PINS;
use crate::values::{Digest, ImageReference};

/// Limit on images that callers have pinned.
const MOST: usize = 64;

/// An image that a caller has pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByCall {
    /// When it may be fetched, and how fast.
    pub terms: Terms,
    /// The version that ran then.
    pub during: String,
    /// Whether a prepared upgrade needs it.
    #[serde(default)]
    pub for_upgrade: bool,
}

impl ByCall {
    fn named_by(&self) -> &'static str {
        match self.for_upgrade {
            true => "upgrade",
            false => "caller",
        }
    }
}

/// An image that is to be fetched and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub reference: ImageReference,
    /// Whose word it is pinned by.
    pub named_by: Vec<&'static str>,
    /// The terms of each of them: it is fetched on the first that allow it now.
    pub terms: Vec<Terms>,
}

/// The image that a name meant when it was pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meaning {
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The digest of the index that the name pointed to, if it is known and there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Digest>,
    /// The blobs that it is made from, until it is in the store: those that have come are kept for the next try.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blobs: Vec<Digest>,
}

impl Meaning {
    /// Of an image, and the blobs that are still to come.
    pub fn of(image: ImageDigests, blobs: Vec<Digest>) -> Self {
        Meaning {
            digest: image.digest,
            index: image.index,
            blobs,
        }
    }

    /// The digests by which its registry is asked for the image.
    pub fn image(&self) -> ImageDigests {
        ImageDigests {
            digest: self.digest,
            index: self.index,
        }
    }
}

/// Too many images are pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at most {MOST} images can be pinned by calls; unpin some first")]
pub struct TooMany;

/// The record; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    /// Its watchers are told what callers want.
    kept: KeptRecord<PinRecord>,
}

/// The record as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PinRecord {
    #[serde(default)]
    calls: BTreeMap<ImageReference, ByCall>,
    #[serde(default)]
    meanings: BTreeMap<ImageReference, Meaning>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preparation: Option<Preparation>,
}

impl Pins {
    /// Starts from the record that the previous generation handed over.
    pub fn new(record: PinRecord) -> Self {
        let pins = Self::default();
        *pins.kept.lock() = record;
        pins
    }

    /// Returns the whole record.
    pub fn record(&self) -> PinRecord {
        self.kept.lock().clone()
    }

    /// Keeps the record in this directory from now on. A record that is there already is newer than a handed-over one, and replaces it.
    pub fn open(&self, directory: &Path) -> anyhow::Result<()> {
        let take = |record: &mut PinRecord, read| *record = read;
        self.kept.open(IMAGE_PINS, directory, take)
    }

    /// Returns the images that are to be fetched and kept: those of callers first, as they wait for them, then those of the config, each
    /// with the part of it that names them, and their terms.
    pub fn wanted<'a>(
        &self,
        of_config: impl IntoIterator<Item = (&'a ImageReference, &'static str, Terms)>,
    ) -> Vec<Wanted> {
        let record = self.kept.lock();
        let calls = record.calls.iter();
        let mut wanted: Vec<Wanted> = calls
            .map(|(reference, call)| Wanted {
                reference: reference.clone(),
                named_by: vec![call.named_by()],
                terms: vec![call.terms.clone()],
            })
            .collect();
        for (reference, named_by, terms) in of_config {
            let known = wanted.iter_mut().find(|it| it.reference == *reference);
            match known {
                Some(known) => {
                    known.named_by.push(named_by);
                    known.terms.push(terms);
                }
                None => wanted.push(Wanted {
                    reference: reference.clone(),
                    named_by: vec![named_by],
                    terms: vec![terms],
                }),
            }
        }
        wanted
    }

    /// Returns the image that a pinned name meant.
    pub fn meaning(&self, reference: &ImageReference) -> Option<Meaning> {
        self.kept.lock().meanings.get(reference).cloned()
    }

    /// Notes the images that names mean; the names mean them for as long as they are pinned. An index that is known of an image stays known.
    pub async fn note(&self, meanings: Vec<(ImageReference, Meaning)>) {
        let has_changed = {
            let known = &mut self.kept.lock().meanings;
            let before = known.clone();
            mean(known, meanings);
            *known != before
        };
        if has_changed {
            self.write().await;
        }
    }

    /// Forgets the images of all other names.
    pub async fn retain(&self, names: &BTreeSet<ImageReference>) {
        let has_changed = {
            let known = &mut self.kept.lock().meanings;
            let before = known.len();
            known.retain(|reference, _| names.contains(reference));
            known.len() != before
        };
        if has_changed {
            self.write().await;
        }
    }

    /// Returns the images that must not be removed.
    pub fn digests(&self) -> BTreeSet<Digest> {
        let record = self.kept.lock();
        let meanings = record.meanings.values();
        meanings.map(|meaning| meaning.digest).collect()
    }

    /// Returns the blobs of images that are not in the store yet.
    pub fn unfinished_blobs(&self) -> Vec<Digest> {
        let record = self.kept.lock();
        let meanings = record.meanings.values();
        meanings.flat_map(|it| it.blobs.iter().copied()).collect()
    }

    /// Returns the first name by which an image is pinned.
    pub fn name_of(&self, digest: Digest) -> Option<ImageReference> {
        let record = self.kept.lock();
        let mut meanings = record.meanings.iter();
        let (name, _) = meanings.find(|(_, meaning)| meaning.digest == digest)?;
        Some(name.clone())
    }

    /// Pins images for a caller. All of them, or none.
    ///
    /// # Errors
    /// There are too many.
    pub async fn pin(&self, images: Vec<ImageReference>, call: &ByCall) -> Result<(), TooMany> {
        add(&mut self.kept.lock().calls, images, call)?;
        self.wishes_changed().await;
        Ok(())
    }

    /// Pins the images of an upgrade, which is prepared when they are here, with what their names mean. It takes the place of another one.
    ///
    /// # Errors
    /// There are too many.
    pub async fn prepare(
        &self,
        preparation: Preparation,
        meanings: Vec<(ImageReference, Meaning)>,
    ) -> Result<(), TooMany> {
        {
            let record = &mut *self.kept.lock();
            let call = ByCall {
                terms: preparation.terms.clone(),
                during: preparation.during.clone(),
                for_upgrade: true,
            };
            let mut calls = record.calls.clone();
            calls.retain(|_, call| !call.for_upgrade);
            add(&mut calls, preparation.images.clone(), &call)?;
            record.calls = calls;
            mean(&mut record.meanings, meanings);
            record.preparation = Some(preparation);
        }
        self.wishes_changed().await;
        Ok(())
    }

    /// Returns the upgrade that is prepared.
    pub fn preparation(&self) -> Option<Preparation> {
        self.kept.lock().preparation.clone()
    }

    /// Notes that the version of a preparation is written, unless another one has taken its place.
    pub async fn note_written(&self, written: &Preparation) {
        {
            let preparation = &mut self.kept.lock().preparation;
            match preparation {
                Some(known) if known == written => known.is_written = true,
                _ => return,
            }
        }
        self.write().await;
    }

    /// Forgets the upgrade that is prepared. Its images stay pinned.
    pub async fn forget_preparation(&self) {
        if self.kept.lock().preparation.take().is_some() {
            self.wishes_changed().await;
        }
    }

    /// Forgets the upgrade that was prepared, unless another one has taken its place. Its images stay pinned.
    pub async fn forget_prepared(&self, prepared: &Preparation) {
        let forgotten = {
            let preparation = &mut self.kept.lock().preparation;
            preparation.take_if(|known| *known == *prepared)
        };
        if forgotten.is_some() {
            self.wishes_changed().await;
        }
    }

    /// Takes a caller's pin back; returns whether there was one. An upgrade that needs it is not prepared any more.
    pub async fn unpin(&self, image: &ImageReference) -> bool {
        let was_there = {
            let record = &mut *self.kept.lock();
            let preparation = &mut record.preparation;
            if preparation
                .as_ref()
                .is_some_and(|it| !it.is_written && it.images.contains(image))
            {
                *preparation = None;
            }
            record.calls.remove(image).is_some()
        };
        if was_there {
            self.wishes_changed().await;
        }
        was_there
    }

    /// Forgets what a name meant that nothing pins any more, so that a new pin asks what it means then.
    pub async fn forget(&self, image: &ImageReference) {
        let has_changed = {
            let record = &mut *self.kept.lock();
            // Another caller may have pinned it meanwhile.
            !record.calls.contains_key(image) && record.meanings.remove(image).is_some()
        };
        if has_changed {
            self.write().await;
        }
    }

    /// Releases what an upgrade's commit ends the pins of, and returns the number of images: what callers pinned while another version ran
    /// than the committed one, and the images of the preparation that brought it. `image` is the digest of the committed installer.
    pub async fn release(&self, committed: &str, image: Option<Digest>) -> usize {
        let (released, has_changed) = {
            let record = &mut *self.kept.lock();
            let prepared = record.preparation.as_ref();
            // The same version may be built anew, and prepared under itself.
            let is_prepared_one = prepared.is_some_and(|it| image == Some(it.digest));
            let is_over = prepared.is_some_and(|it| is_prepared_one || it.during != committed);
            if is_over {
                record.preparation = None;
            }
            let before = record.calls.len();
            let stays =
                |call: &ByCall| call.during == committed && !(is_prepared_one && call.for_upgrade);
            record.calls.retain(|_, call| stays(call));
            let released = before - record.calls.len();
            (released, is_over || released > 0)
        };
        if has_changed {
            self.wishes_changed().await;
        }
        released
    }

    /// Has whoever watches look again: another part of the machine wants an image.
    pub fn look_again(&self) {
        self.kept.tell();
    }

    /// Watches which images callers want.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.kept.watch()
    }

    async fn wishes_changed(&self) {
        self.kept.tell();
        self.write().await;
    }

    /// Writes the file. If that fails, the record holds until machined ends.
    async fn write(&self) {
        let loss = "which images are pinned is kept in memory alone";
        self.kept.write(IMAGE_PINS, loss, PinRecord::clone).await;
    }
}

/// Adds meanings. The store may not know by which index its image came: one that is known stays.
fn mean(known: &mut BTreeMap<ImageReference, Meaning>, meanings: Vec<(ImageReference, Meaning)>) {
    for (reference, meaning) in meanings {
        let before = known.get(&reference).map(Meaning::image);
        let image = meaning.image().or_index_of(before);
        known.insert(reference, Meaning::of(image, meaning.blobs));
    }
}

/// Adds images to those that callers have pinned: all of them, or none. What a caller has pinned stays his.
fn add(
    calls: &mut BTreeMap<ImageReference, ByCall>,
    images: Vec<ImageReference>,
    call: &ByCall,
) -> Result<(), TooMany> {
    let mut all = calls.clone();
    for image in images {
        match call.for_upgrade {
            true => drop(all.entry(image).or_insert_with(|| call.clone())),
            false => drop(all.insert(image, call.clone())),
        }
    }
    if all.len() > MOST {
        return Err(TooMany);
    }
    *calls = all;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::whole_file;

    fn name(text: &str) -> ImageReference {
        text.parse().unwrap()
    }

    fn of_config(
        images: &[ImageReference],
    ) -> impl Iterator<Item = (&ImageReference, &'static str, Terms)> {
        let named = images.iter();
        named.map(|image| (image, "config", Terms::default()))
    }

    fn names(pins: &Pins, config: &[ImageReference]) -> Vec<(String, Vec<&'static str>)> {
        let wanted = pins.wanted(of_config(config)).into_iter();
        wanted
            .map(|it| (it.reference.to_string(), it.named_by))
            .collect()
    }

    #[tokio::test]
    async fn pins_of_callers_are_kept_until_another_version_is_committed() {
        let directory = tempfile::tempdir().unwrap();
        let (web, os) = (name("r.io/web:v2"), name("r.io/os:v2"));
        let config = [name("r.io/db:v1"), os.clone()];
        let call = ByCall {
            terms: Terms {
                window: "02:00-05:00".parse().ok(),
                bandwidth: "2MiB/s".parse().ok(),
            },
            during: "v0.1.0".to_owned(),
            for_upgrade: false,
        };
        let pins = Pins::default();
        pins.open(directory.path()).unwrap();
        let mut wishes = pins.watch();
        pins.pin(vec![web.clone(), os.clone()], &call)
            .await
            .unwrap();
        assert!(wishes.has_changed().unwrap());
        wishes.mark_unchanged();
        let meaning = Meaning {
            digest: Digest::of(b"web"),
            index: Some(Digest::of(b"index")),
            blobs: vec![Digest::of(b"layer")],
        };
        pins.note(vec![(web.clone(), meaning.clone())]).await;
        assert!(!wishes.has_changed().unwrap());

        // Another machined goes on with it.
        let again = Pins::default();
        again.open(directory.path()).unwrap();
        assert_eq!(
            names(&again, &config),
            [
                ("r.io/os:v2".to_owned(), vec!["caller", "config"]),
                ("r.io/web:v2".to_owned(), vec!["caller"]),
                ("r.io/db:v1".to_owned(), vec!["config"]),
            ]
        );
        let wanted = again.wanted([]);
        assert_eq!(wanted[1].terms, [call.terms]);
        assert_eq!(again.meaning(&web), Some(meaning));
        assert_eq!(again.name_of(Digest::of(b"web")), Some(web.clone()));
        // The same version again, or a return to it, releases nothing.
        assert_eq!(again.release("v0.1.0", None).await, 0);
        assert!(again.unpin(&os).await && !again.unpin(&os).await);
        assert_eq!(again.release("v0.2.0", None).await, 1);
        again.retain(&BTreeSet::from(config)).await;
        assert!(again.digests().is_empty() && again.wanted([]).is_empty());
    }

    #[tokio::test]
    async fn an_upgrade_pins_its_images_until_it_is_committed() {
        let preparation = |version: &str, images: &[&str]| Preparation {
            image: name("r.io/os:v2"),
            digest: Digest::of(b"os"),
            version: version.to_owned(),
            images: images.iter().map(|image| name(image)).collect(),
            terms: Terms::default(),
            force: false,
            during: "v0.1.0".to_owned(),
            is_written: false,
        };
        let by_call = ByCall {
            terms: Terms::default(),
            during: "v0.1.0".to_owned(),
            for_upgrade: false,
        };
        let pins = Pins::default();
        let none: [ImageReference; 0] = [];
        let web = "r.io/web:v2".to_owned();
        pins.pin(vec![name(&web)], &by_call).await.unwrap();
        let first = preparation("v0.2.0", &["r.io/os:v2", "r.io/db:v1"]);
        pins.prepare(first.clone(), Vec::new()).await.unwrap();
        // Another one takes its place; what a caller has pinned stays his.
        let second = preparation("v0.3.0", &["r.io/os:v3", "r.io/web:v2"]);
        pins.prepare(second.clone(), Vec::new()).await.unwrap();
        let os = ("r.io/os:v3".to_owned(), vec!["upgrade"]);
        assert_eq!(names(&pins, &none), [os, (web.clone(), vec!["caller"])]);
        pins.note_written(&first).await;
        assert_eq!(pins.preparation(), Some(second.clone()));
        pins.note_written(&second).await;
        assert!(pins.preparation().unwrap().is_written);
        assert_eq!(pins.release("v0.1.0", None).await, 0);
        assert!(pins.preparation().is_some());
        assert_eq!(pins.release("v0.3.0", None).await, 2);
        assert_eq!(pins.preparation(), None);

        // Without one of its images there is no upgrade to prepare.
        pins.prepare(second, Vec::new()).await.unwrap();
        assert!(pins.unpin(&name(&web)).await);
        assert_eq!(pins.preparation(), None);
    }

    #[tokio::test]
    async fn a_name_that_is_pinned_again_may_mean_another_image() {
        let pins = Pins::default();
        let web = name("r.io/web:v2");
        let call = ByCall {
            terms: Terms::default(),
            during: "v0.1.0".to_owned(),
            for_upgrade: false,
        };
        let image = ImageDigests {
            digest: Digest::of(b"web"),
            index: None,
        };
        let meaning = Meaning::of(image, Vec::new());
        pins.pin(vec![web.clone()], &call).await.unwrap();
        pins.note(vec![(web.clone(), meaning.clone())]).await;
        // It is pinned.
        pins.forget(&web).await;
        assert_eq!(pins.meaning(&web), Some(meaning));
        assert!(pins.unpin(&web).await);
        pins.forget(&web).await;
        pins.pin(vec![web.clone()], &call).await.unwrap();
        assert_eq!(pins.meaning(&web), None);
    }

    fn of_upgrade(version: &str, during: &str, image: &str) -> Preparation {
        let name = name(image);
        Preparation {
            digest: Digest::of(image.as_bytes()),
            images: vec![name.clone(), "r.io/web:v2".parse().unwrap()],
            image: name,
            version: version.to_owned(),
            terms: Terms::default(),
            force: false,
            during: during.to_owned(),
            is_written: true,
        }
    }

    /// A machine restarts on its way to the commit: between two steps another machined goes on with the record on the disk.
    #[tokio::test]
    async fn images_of_an_upgrade_are_pinned_until_it_is_committed_whatever_comes_in_between() {
        let directory = tempfile::tempdir().unwrap();
        let booted = || {
            let pins = Pins::default();
            pins.open(directory.path()).unwrap();
            pins
        };
        let none: [ImageReference; 0] = [];
        let expected = [
            ("r.io/os:v2".to_owned(), vec!["upgrade"]),
            ("r.io/web:v2".to_owned(), vec!["upgrade"]),
        ];
        let next = of_upgrade("v0.2.0", "v0.1.0", "r.io/os:v2");
        let pins = booted();
        pins.prepare(next.clone(), Vec::new()).await.unwrap();
        // v0.2.0 runs and is on trial; then it has failed, and v0.1.0 runs again.
        assert_eq!(names(&booted(), &none), expected);
        booted().forget_preparation().await;
        assert_eq!(names(&booted(), &none), expected);
        // A rollback commits nothing; the version before it is kept by an upgrade to itself.
        assert_eq!(booted().release("v0.1.0", None).await, 0);
        assert_eq!(names(&booted(), &none), expected);
        let committed = Some(next.digest);
        assert_eq!(booted().release("v0.2.0", committed).await, 2);
        assert!(names(&booted(), &none).is_empty());
    }

    /// It was asked for while the disk was asked about the one before.
    #[tokio::test]
    async fn a_preparation_is_not_forgotten_with_the_one_whose_place_it_has_taken() {
        let pins = Pins::default();
        let before = of_upgrade("v0.2.0", "v0.1.0", "r.io/os:v2");
        let after = of_upgrade("v0.3.0", "v0.1.0", "r.io/os:v3");
        pins.prepare(before.clone(), Vec::new()).await.unwrap();
        pins.prepare(after.clone(), Vec::new()).await.unwrap();
        pins.forget_prepared(&before).await;
        assert_eq!(pins.preparation(), Some(after.clone()));
        pins.forget_prepared(&after).await;
        assert_eq!(pins.preparation(), None);
    }

    #[tokio::test]
    async fn the_same_version_built_anew_releases_its_images_too() {
        let pins = Pins::default();
        let rebuilt = of_upgrade("v0.1.0", "v0.1.0", "r.io/os:v1");
        let by_call = ByCall {
            terms: Terms::default(),
            during: "v0.1.0".to_owned(),
            for_upgrade: false,
        };
        pins.pin(vec![name("r.io/db:v2")], &by_call).await.unwrap();
        pins.prepare(rebuilt.clone(), Vec::new()).await.unwrap();
        // Another build of it.
        let other = Some(Digest::of(b"other"));
        assert_eq!(pins.release("v0.1.0", other).await, 0);
        assert_eq!(pins.release("v0.1.0", Some(rebuilt.digest)).await, 2);
        assert_eq!(pins.preparation(), None);
        let none: [ImageReference; 0] = [];
        let stays = ("r.io/db:v2".to_owned(), vec!["caller"]);
        assert_eq!(names(&pins, &none), [stays]);
    }

    #[tokio::test]
    async fn all_of_a_call_or_none_is_pinned() {
        let pins = Pins::default();
        let call = ByCall {
            terms: Terms::default(),
            during: "v0.1.0".to_owned(),
            for_upgrade: false,
        };
        let images = |range: std::ops::Range<usize>| {
            range
                .map(|number| name(&format!("r.io/a:{number}")))
                .collect()
        };
        pins.pin(images(0..MOST - 1), &call).await.unwrap();
        assert_eq!(
            pins.pin(images(MOST - 2..MOST + 1), &call).await,
            Err(TooMany)
        );
        assert_eq!(pins.wanted([]).len(), MOST - 1);
        pins.pin(images(MOST - 2..MOST), &call).await.unwrap();
    }

    /// The version before this one knew no indexes.
    #[tokio::test]
    async fn an_index_is_kept_beside_the_digest_and_older_versions_read_past_it() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Older {
            meanings: BTreeMap<ImageReference, OlderMeaning>,
        }
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct OlderMeaning {
            digest: Digest,
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(IMAGE_PINS.name);
        let (web, digest) = (name("r.io/web:v1"), Digest::of(b"manifest"));
        let older = Older {
            meanings: BTreeMap::from([(web.clone(), OlderMeaning { digest })]),
        };
        whole_file::replace_json(&file, 0o600, &older).unwrap();
        let pins = Pins::default();
        pins.open(directory.path()).unwrap();
        let meaning = pins.meaning(&web).unwrap();
        assert_eq!(
            meaning.image(),
            ImageDigests {
                digest,
                index: None
            }
        );

        let index = Some(Digest::of(b"index"));
        let found = Meaning::of(ImageDigests { digest, index }, vec![digest]);
        pins.note(vec![(web.clone(), found)]).await;
        // The store does not say by which index it came.
        pins.note(vec![(web.clone(), meaning)]).await;
        let again = Pins::default();
        again.open(directory.path()).unwrap();
        let meaning = again.meaning(&web).unwrap();
        assert_eq!(meaning.image(), ImageDigests { digest, index });
        assert_eq!(whole_file::read_json(&file).unwrap(), Some(older));
    }
}
