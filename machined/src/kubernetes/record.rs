//! The record of extensions that were proven and that failed, beside the node's other files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::trial::Record;
use crate::base::lock::Lock as _;
use crate::base::{blocking_io, whole_file};
use crate::config::Kubernetes;
use crate::values::Digest;

/// The record; clones share it.
#[derive(Debug, Clone, Default)]
pub struct NodeRecord {
    /// None until it is read.
    record: Arc<Mutex<Option<Record>>>,
}

fn file() -> PathBuf {
    Path::new(Kubernetes::HOME).join("extensions.json")
}

impl NodeRecord {
    /// Returns the record. One that cannot be read begins anew.
    pub fn get(&self) -> Record {
        let mut record = self.record.locked();
        record
            .get_or_insert_with(|| match whole_file::read_json(&file()) {
                Ok(read) => read.unwrap_or_default(),
                Err(error) => {
                    tracing::warn!("Kubernetes: the record of extensions begins anew: {error:#}");
                    Record::default()
                }
            })
            .clone()
    }

    /// Returns the images that the node may go back to, which must not be removed.
    pub fn digests(&self) -> BTreeSet<Digest> {
        let proven = self.get().proven.into_iter().flatten();
        proven.map(|(_, chosen)| chosen.digest).collect()
    }

    /// Puts another record in its place.
    ///
    /// # Errors
    /// It cannot be written; it holds until machined ends.
    pub async fn set(&self, record: Record) -> anyhow::Result<()> {
        *self.record.locked() = Some(record.clone());
        let write = move || whole_file::replace_json(&file(), 0o600, &record);
        blocking_io::within(blocking_io::ANSWER, write).await?
    }
}
