//! The images that bundles brought. They stay though nothing names them yet: there is no registry to get them from again.
//!
//! The images of the last few bundles stay; with each further bundle those of the oldest may be collected. The record lies beside the images,
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

/// The images of one bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    bundle: Digest,
    images: BTreeSet<Digest>,
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

    fn read(&self) -> Vec<Taken> {
        let read = whole_file::read_json(&self.file);
        let read = read.inspect_err(|error| {
            tracing::warn!("which images came by bundles is unknown: {error:#}");
        });
        read.ok().flatten().unwrap_or_default()
    }

    /// Notes the images of a bundle that was taken.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn add(&self, bundle: Digest, images: BTreeSet<Digest>) -> anyhow::Result<()> {
        let _writing = self.writing.locked();
        let mut all = self.read();
        all.retain(|taken| taken.bundle != bundle);
        all.push(Taken { bundle, images });
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
        kept.add(digest("one"), set(&["a", "b"])).unwrap();
        kept.add(digest("two"), set(&["b", "c"])).unwrap();
        assert_eq!(kept.images(), set(&["a", "b", "c"]));
        kept.add(digest("one"), set(&["a", "b"])).unwrap();
        kept.add(digest("three"), set(&["d"])).unwrap();
        assert_eq!(kept.images(), set(&["a", "b", "d"]));
        std::fs::write(directory.path().join("kept.json"), "[{").unwrap();
        assert!(kept.images().is_empty());
    }
}
