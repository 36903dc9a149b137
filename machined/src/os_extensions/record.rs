//! The record of the images that extensions of the machine are made of: at a start they are in force before anything is fetched, and they
//! stay in force while another one cannot be used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::base::lock::Lock as _;
use crate::base::{blocking_io, whole_file};
use crate::kubernetes::trial::Chosen;
use crate::values::Digest;

/// The directory of the record, and of files that are being fetched.
pub const HOME: &str = "/var/lib/instar/extensions";
const NAME: &str = "in-force.json";

/// The record: images by the names of extensions. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct OsRecord {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    images: BTreeMap<String, Chosen>,
    /// None until [`open`](OsRecord::open) has set a directory.
    directory: Option<PathBuf>,
}

impl OsRecord {
    /// Keeps the record on /var from now on, and reads the one that is there.
    ///
    /// # Errors
    /// It cannot be read; it begins anew.
    pub fn open(&self) -> anyhow::Result<()> {
        self.open_in(Path::new(HOME))
    }

    fn open_in(&self, directory: &Path) -> anyhow::Result<()> {
        let read = whole_file::read_json(&directory.join(NAME));
        let mut state = self.state.locked();
        state.directory = Some(directory.to_owned());
        state.images = read?.unwrap_or_default();
        Ok(())
    }

    /// Returns the record.
    pub fn get(&self) -> BTreeMap<String, Chosen> {
        self.state.locked().images.clone()
    }

    /// Returns the images that must not be removed.
    pub fn digests(&self) -> BTreeSet<Digest> {
        let state = self.state.locked();
        state.images.values().map(|chosen| chosen.digest).collect()
    }

    /// Puts another record in its place; writes nothing if it is the same.
    ///
    /// # Errors
    /// It cannot be written; it holds until machined ends.
    pub async fn set(&self, images: BTreeMap<String, Chosen>) -> anyhow::Result<()> {
        let directory = {
            let mut state = self.state.locked();
            if state.images == images {
                return Ok(());
            }
            state.images.clone_from(&images);
            state.directory.clone()
        };
        let Some(directory) = directory else {
            return Ok(());
        };
        let write = move || {
            std::fs::create_dir_all(&directory)?;
            whole_file::replace_json(&directory.join(NAME), 0o600, &images)
        };
        blocking_io::within(blocking_io::ANSWER, write).await?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn the_images_in_force_are_known_after_a_start() {
        let var = tempfile::tempdir().unwrap();
        let home = var.path().join("extensions");
        let chosen = Chosen {
            image: "r.io/data:v1".parse().unwrap(),
            digest: Digest::of(b"in force"),
        };
        let images = BTreeMap::from([("data".to_owned(), chosen)]);
        let before = OsRecord::default();
        before.open_in(&home).unwrap();
        before.set(images.clone()).await.unwrap();
        let record = OsRecord::default();
        assert!(record.digests().is_empty(), "the disk is not there yet");
        record.open_in(&home).unwrap();
        assert_eq!(record.get(), images);
        assert_eq!(record.digests(), BTreeSet::from([Digest::of(b"in force")]));
    }
}
