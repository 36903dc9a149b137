//! The images and files that bundles brought. They stay though nothing names them yet: there is no registry to get them from again.
//!
//! Those of the last few bundles stay; with each further bundle those of the oldest may be collected. The record lies beside the images,
//! and goes with them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::values::Digest;

/// Number of bundles whose images stay: the one for the next upgrade, and the one before.
const MOST: usize = 2;
/// Only root reads it.
const MODE: u32 = 0o600;

/// The record of the last bundles.
#[derive(Debug)]
pub struct Kept {
    file: PathBuf,
    /// Held while the record is changed.
    writing: Mutex<()>,
}

/// What is remembered of one bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    bundle: Digest,
    /// Its images that are in the store.
    pub images: BTreeSet<Digest>,
    /// The images by which its files of extensions stay in the store, and those that were made of such files.
    #[serde(default)]
    pub files: BTreeSet<Digest>,
    /// A person at the machine has approved it.
    #[serde(default)]
    pub by_person: bool,
    /// An upgrade to its installer has begun.
    #[serde(default)]
    pub upgrade_begun: bool,
}

impl Kept {
    /// The record in this file.
    pub fn new(file: PathBuf) -> Self {
        Kept {
            file,
            writing: Mutex::default(),
        }
    }

    /// The digests of all images that stay. A record that cannot be read is none.
    pub fn images(&self) -> BTreeSet<Digest> {
        let bundles = self.read().into_iter();
        bundles.flat_map(|bundle| bundle.images).collect()
    }

    /// The digests of all images that are there for a file of an extension, and stay.
    pub fn files(&self) -> BTreeSet<Digest> {
        let bundles = self.read().into_iter();
        bundles.flat_map(|bundle| bundle.files).collect()
    }

    fn read(&self) -> Vec<Taken> {
        let read = whole_file::read_json(&self.file);
        let read = read.inspect_err(|error| {
            tracing::warn!("which images came by bundles is unknown: {error:#}");
        });
        read.ok().flatten().unwrap_or_default()
    }

    /// Returns what is remembered of a bundle.
    pub fn find(&self, bundle: Digest) -> Option<Taken> {
        self.read().into_iter().find(|taken| taken.bundle == bundle)
    }

    /// Changes what is remembered of a bundle, which is the newest one from now on.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn change(&self, bundle: Digest, change: impl FnOnce(&mut Taken)) -> anyhow::Result<()> {
        let _writing = self.writing.locked();
        let mut all = self.read();
        let known = all.iter().position(|taken| taken.bundle == bundle);
        let mut taken = match known {
            Some(place) => all.remove(place),
            None => Taken {
                bundle,
                images: BTreeSet::new(),
                files: BTreeSet::new(),
                by_person: false,
                upgrade_begun: false,
            },
        };
        change(&mut taken);
        all.push(taken);
        let surplus = all.len().saturating_sub(MOST);
        all.drain(..surplus);
        whole_file::replace_json(&self.file, MODE, &all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_images_of_the_last_bundles_stay() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::new(directory.path().join("kept.json"));
        assert!(kept.images().is_empty());
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
        assert_eq!(kept.images(), set(&["a", "b", "c"]));
        add("one", &["a", "b"]);
        add("three", &["d"]);
        assert_eq!(kept.images(), set(&["a", "b", "d"]));
        let begun = |name| kept.find(digest(name)).map(|taken| taken.upgrade_begun);
        kept.change(digest("one"), |taken| taken.upgrade_begun = true)
            .unwrap();
        assert_eq!(kept.images(), set(&["a", "b", "d"]));
        assert_eq!(begun("one"), Some(true));
        assert_eq!((begun("three"), begun("two")), (Some(false), None));
        std::fs::write(directory.path().join("kept.json"), "[{").unwrap();
        assert!(kept.images().is_empty());
    }

    #[test]
    fn files_stay_as_images_do_and_an_old_record_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        let (bundle, image, file) = (Digest::of(b"one"), Digest::of(b"a"), Digest::of(b"f"));
        let old = format!(r#"[{{"bundle":"{bundle}","images":["{image}"]}}]"#);
        std::fs::write(&path, old).unwrap();
        let kept = Kept::new(path);
        assert_eq!((kept.images().len(), kept.files().len()), (1, 0));
        let add = |taken: &mut Taken| {
            taken.files.insert(file);
        };
        kept.change(bundle, add).unwrap();
        assert_eq!(kept.files(), BTreeSet::from([file]));
        for other in [b"two", b"six"] {
            kept.change(Digest::of(other), |_| {}).unwrap();
        }
        assert!(kept.files().is_empty());
    }
}
