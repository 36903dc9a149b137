//! The images and files that bundles brought. They stay though nothing names them yet: there is no registry to get them from again.
//!
//! Those of the last few bundles stay; with each further bundle those of the oldest may be collected. Images and files are counted by
//! themselves, and so are bundles that nobody has approved: any stick may bring files that the config names, and must not push out the
//! images of the next upgrade. The record lies beside the images, and goes with them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::values::Digest;

/// Number of bundles whose images stay, and of those whose files do: the one for the next upgrade, and the one before.
const MOST: usize = 2;
/// Number of upgrades that a bundle begins at most. One may be cut off by a power cut, or fail for a reason that a person then mends.
pub(super) const MOST_UPGRADES: u8 = 3;
/// Only root reads it.
const MODE: u32 = 0o600;

/// The record of the last bundles.
#[derive(Debug)]
pub struct Kept {
    file: PathBuf,
    /// Held while the record is changed.
    writing: Mutex<()>,
}

/// The record of one bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    bundle: Digest,
    /// Its images that are in the store.
    pub images: BTreeSet<Digest>,
    /// The images by which its files of extensions stay in the store, and those that were made of such files.
    #[serde(default)]
    pub files: BTreeSet<Digest>,
    /// Its caller, the config or a person has approved it as a whole. Earlier versions did not say so: what they kept stays.
    #[serde(default = "approved_before")]
    pub approved: bool,
    /// A person at the machine has approved it.
    #[serde(default)]
    pub by_person: bool,
    /// An upgrade to its installer has begun: for versions before this one, which count none.
    #[serde(default)]
    upgrade_begun: bool,
    /// How many upgrades to its installer have begun.
    #[serde(default)]
    upgrades_begun: u8,
}

impl Taken {
    /// Notes an image that is in the store. Those of an earlier time at which the bundle was brought stay too: this time may be cut off.
    pub fn brought(&mut self, image: Digest) {
        self.images.insert(image);
    }

    /// Returns how many upgrades to its installer have begun.
    pub fn upgrades(&self) -> u8 {
        self.upgrades_begun.max(u8::from(self.upgrade_begun))
    }

    /// Notes that an upgrade to its installer has begun.
    pub fn upgrade_begins(&mut self) {
        self.upgrades_begun = self.upgrades().saturating_add(1);
        self.upgrade_begun = true;
    }

    /// Notes that its version has come to run. Whoever goes back from it then does not want it again from a stick that is still there.
    pub fn upgrade_done(&mut self) {
        self.upgrades_begun = MOST_UPGRADES;
        self.upgrade_begun = true;
    }
}

fn approved_before() -> bool {
    true
}

impl Kept {
    /// The record in this file.
    pub fn new(file: PathBuf) -> Self {
        Kept {
            file,
            writing: Mutex::default(),
        }
    }

    /// The digests of all images that stay.
    ///
    /// # Errors
    /// The record cannot be read: nobody knows which images stay.
    pub fn images(&self) -> anyhow::Result<BTreeSet<Digest>> {
        let bundles = self.read()?.into_iter();
        Ok(bundles.flat_map(|bundle| bundle.images).collect())
    }

    /// The digests of all images that are there for a file of an extension, and stay.
    ///
    /// # Errors
    /// The record cannot be read: nobody knows which images stay.
    pub fn files(&self) -> anyhow::Result<BTreeSet<Digest>> {
        let bundles = self.read()?.into_iter();
        Ok(bundles.flat_map(|bundle| bundle.files).collect())
    }

    fn read(&self) -> anyhow::Result<Vec<Taken>> {
        let read = whole_file::read_json(&self.file);
        let read = read.context(
            "which images came by bundles is not known: a disk may be failing, or the record is damaged; the next bundle that is taken replaces a \
             damaged one",
        );
        Ok(read?.unwrap_or_default())
    }

    /// Returns the record of a bundle.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn find(&self, bundle: Digest) -> anyhow::Result<Option<Taken>> {
        let mut all = self.read()?.into_iter();
        Ok(all.find(|taken| taken.bundle == bundle))
    }

    /// Reads the record to change it. One that is damaged is begun anew: with it, no bundle could be taken any more.
    fn read_to_change(&self) -> anyhow::Result<Vec<Taken>> {
        self.read().or_else(|error| {
            if error.downcast_ref::<serde_json::Error>().is_none() {
                return Err(error);
            }
            tracing::error!(
                "the record of bundles is begun anew, so the images of earlier bundles stay no longer: {error:#}"
            );
            Ok(Vec::new())
        })
    }

    /// Changes what is remembered of a bundle, which is the newest one from now on.
    ///
    /// # Errors
    /// The record cannot be read or written.
    pub fn change(&self, bundle: Digest, change: impl FnOnce(&mut Taken)) -> anyhow::Result<()> {
        let _writing = self.writing.locked();
        let mut all = self.read_to_change()?;
        let known = all.iter().position(|taken| taken.bundle == bundle);
        let mut taken = match known {
            Some(place) => all.remove(place),
            None => Taken {
                bundle,
                images: BTreeSet::new(),
                files: BTreeSet::new(),
                approved: false,
                by_person: false,
                upgrade_begun: false,
                upgrades_begun: 0,
            },
        };
        change(&mut taken);
        all.push(taken);
        forget_old(&mut all);
        whole_file::replace_json(&self.file, MODE, &all)
    }
}

/// Forgets the images of all but the last bundles that have images, and the files of all but the last that have files.
fn forget_old(all: &mut Vec<Taken>) {
    let parts: [fn(&mut Taken) -> &mut BTreeSet<Digest>; 2] =
        [|taken| &mut taken.images, |taken| &mut taken.files];
    for approved in [true, false] {
        for part in parts {
            let newest_first = all.iter_mut().rev();
            let alike = newest_first.filter(|taken| taken.approved == approved);
            let brought = alike.map(part).filter(|digests| !digests.is_empty());
            brought.skip(MOST).for_each(BTreeSet::clear);
        }
    }
    all.retain(|taken| !taken.images.is_empty() || !taken.files.is_empty());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_images_of_the_last_bundles_stay() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::new(directory.path().join("kept.json"));
        assert!(kept.images().unwrap().is_empty());
        let digest = |text: &str| Digest::of(text.as_bytes());
        let set = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| digest(text))
                .collect::<BTreeSet<_>>()
        };
        let add = |bundle: &str, images: &[&str]| {
            let images = set(images);
            kept.change(digest(bundle), |taken| taken.images = images)
                .unwrap();
        };
        add("one", &["a", "b"]);
        add("two", &["b", "c"]);
        assert_eq!(kept.images().unwrap(), set(&["a", "b", "c"]));
        add("one", &["a", "b"]);
        add("three", &["d"]);
        assert_eq!(kept.images().unwrap(), set(&["a", "b", "d"]));
        let begun = |name| Some(kept.find(digest(name)).unwrap()?.upgrades());
        kept.change(digest("one"), Taken::upgrade_begins).unwrap();
        assert_eq!(kept.images().unwrap(), set(&["a", "b", "d"]));
        assert_eq!(begun("one"), Some(1));
        assert_eq!((begun("three"), begun("two")), (Some(0), None));
    }

    /// Versions before this one wrote only that an upgrade has begun, and read that.
    #[test]
    fn upgrades_by_a_bundle_are_counted_from_an_old_record_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        let (bundle, image) = (Digest::of(b"one"), Digest::of(b"a"));
        let old = format!(r#"[{{"bundle":"{bundle}","images":["{image}"],"upgradeBegun":true}}]"#);
        std::fs::write(&path, old).unwrap();
        let kept = Kept::new(path.clone());
        let upgrades = || kept.find(bundle).unwrap().unwrap().upgrades();
        assert_eq!(upgrades(), 1);
        kept.change(bundle, Taken::upgrade_begins).unwrap();
        assert_eq!(upgrades(), 2);
        kept.change(bundle, Taken::upgrade_done).unwrap();
        assert_eq!(upgrades(), MOST_UPGRADES);
        let written = std::fs::read_to_string(path).unwrap();
        assert!(
            written.replace(' ', "").contains(r#""upgradeBegun":true"#),
            "{written}"
        );
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error_and_a_damaged_one_is_replaced_by_the_next_bundle() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        let (kept, bundle, image) = (
            Kept::new(path.clone()),
            Digest::of(b"bundle"),
            Digest::of(b"image"),
        );
        let bring = || kept.change(bundle, |taken| taken.brought(image));
        // As a disk that fails: it cannot be read as a file.
        std::fs::create_dir(&path).unwrap();
        assert!(kept.images().is_err() && kept.files().is_err() && kept.find(bundle).is_err());
        assert!(bring().is_err());
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "[{").unwrap();
        assert!(kept.images().is_err());
        bring().unwrap();
        assert_eq!(kept.images().unwrap(), BTreeSet::from([image]));
    }

    #[test]
    fn a_bundle_that_is_brought_again_and_cut_off_keeps_its_images() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::new(directory.path().join("kept.json"));
        let digest = |text: &str| Digest::of(text.as_bytes());
        let bring = |images: &[&str]| {
            for image in images {
                let brought = |taken: &mut Taken| taken.brought(digest(image));
                kept.change(digest("bundle"), brought).unwrap();
            }
        };
        bring(&["a", "b"]);
        bring(&["a"]);
        assert_eq!(
            kept.images().unwrap(),
            BTreeSet::from(["a", "b"].map(digest))
        );
    }

    #[test]
    fn a_bundle_pushes_out_only_what_it_brings_itself_and_nothing_of_an_approved_one() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::new(directory.path().join("kept.json"));
        let digest = |text: &str| Digest::of(text.as_bytes());
        let set = |texts: &[&str]| -> BTreeSet<Digest> {
            texts.iter().map(|text| digest(text)).collect()
        };
        let add = |bundle: &str, approved: bool, images: &[&str], files: &[&str]| {
            let change = |taken: &mut Taken| {
                taken.approved |= approved;
                (taken.images, taken.files) = (set(images), set(files));
            };
            kept.change(digest(bundle), change).unwrap();
        };
        let stay = || (kept.images().unwrap(), kept.files().unwrap());
        add("system", true, &["a"], &["f"]);
        add("programs", true, &["b"], &[]);
        for stranger in ["one", "two", "three"] {
            add(stranger, false, &[], &[stranger]);
        }
        assert_eq!(stay(), (set(&["a", "b"]), set(&["f", "two", "three"])));
        add("signed", false, &["s"], &[]);
        assert_eq!(stay(), (set(&["a", "b", "s"]), set(&["f", "two", "three"])));
        // One that a stranger brings again stays approved.
        add("system", false, &["a"], &["f"]);
        for files in ["g", "h"] {
            add(files, true, &[], &[files]);
        }
        let files = set(&["g", "h", "two", "three"]);
        assert_eq!(stay(), (set(&["a", "b", "s"]), files));
    }

    #[test]
    fn files_stay_as_images_do_and_an_old_record_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        let (bundle, image, file) = (Digest::of(b"one"), Digest::of(b"a"), Digest::of(b"f"));
        let old = format!(r#"[{{"bundle":"{bundle}","images":["{image}"]}}]"#);
        std::fs::write(&path, old).unwrap();
        let kept = Kept::new(path);
        assert_eq!(
            (kept.images().unwrap().len(), kept.files().unwrap().len()),
            (1, 0)
        );
        let add = |bundle: Digest, file: Digest| {
            let change = |taken: &mut Taken| {
                taken.approved = true;
                taken.files.insert(file);
            };
            kept.change(bundle, change).unwrap();
        };
        // An earlier version kept this bundle: it counts as approved.
        assert!(kept.find(bundle).unwrap().unwrap().approved);
        add(bundle, file);
        assert_eq!(kept.files().unwrap(), BTreeSet::from([file]));
        let others = [Digest::of(b"two"), Digest::of(b"six")];
        for other in others {
            add(other, other);
        }
        assert_eq!(kept.files().unwrap(), BTreeSet::from(others));
        assert_eq!(kept.images().unwrap(), BTreeSet::from([image]));
    }
}
