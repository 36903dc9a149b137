//! The record of extensions that were proven and that failed, beside the node's other files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::trial::Record;
use crate::base::lock::Lock as _;
use crate::base::{blocking_io, whole_file};
use crate::values::Digest;

/// The name of its file.
const NAME: &str = "extensions.json";

/// The record; clones share it.
#[derive(Debug, Clone, Default)]
pub struct NodeRecord {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    record: Record,
    /// None until [`open`](NodeRecord::open) has set a directory.
    file: Option<PathBuf>,
}

impl NodeRecord {
    /// Keeps the record in this directory from now on, and reads the one that is there.
    ///
    /// # Errors
    /// It cannot be read; it begins anew.
    pub fn open(&self, directory: &Path) -> anyhow::Result<()> {
        let file = directory.join(NAME);
        let read = whole_file::read_json(&file);
        let mut state = self.state.locked();
        state.file = Some(file);
        state.record = read?.unwrap_or_default();
        Ok(())
    }

    /// Returns the record.
    pub fn get(&self) -> Record {
        self.state.locked().record.clone()
    }

    /// Returns the images that must not be removed: those that the node may go back to, and those that it has taken from publishers.
    pub fn digests(&self) -> BTreeSet<Digest> {
        let record = self.get();
        let proven = record.proven.into_iter().flatten();
        let followed = record.followed.into_values();
        let followed = followed.flat_map(|it| [Some(it.in_force), it.next]);
        proven
            .map(|(_, chosen)| chosen.digest)
            .chain(followed.flatten().map(|offer| offer.digest))
            .collect()
    }

    /// Puts another record in its place.
    ///
    /// # Errors
    /// It cannot be written; it holds until machined ends.
    pub async fn set(&self, record: Record) -> anyhow::Result<()> {
        let file = {
            let mut state = self.state.locked();
            state.record = record.clone();
            state.file.clone()
        };
        let Some(file) = file else {
            return Ok(());
        };
        let write = move || whole_file::replace_json(&file, 0o600, &record);
        blocking_io::within(blocking_io::ANSWER, write).await?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kubernetes::trial::Chosen;

    /// A call that removes an image asks for the record before /var is there.
    #[tokio::test]
    async fn a_record_that_was_asked_for_before_its_disk_is_there_is_read_with_the_disk() {
        let var = tempfile::tempdir().unwrap();
        let digest = Digest::of(b"proven");
        let chosen = Chosen {
            image: "r.io/kubelet:v1".parse().unwrap(),
            digest,
        };
        let proven = Record {
            proven: Some([("kubelet".to_owned(), chosen)].into()),
            ..Record::default()
        };
        let before = NodeRecord::default();
        before.open(var.path()).unwrap();
        before.set(proven).await.unwrap();

        let record = NodeRecord::default();
        assert!(record.digests().is_empty(), "the disk is not there yet");
        record.open(var.path()).unwrap();
        assert_eq!(record.digests(), BTreeSet::from([digest]));
    }
}
