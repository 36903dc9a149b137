//! Images that failed on this machine: refused from then on unless forced.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::whole_file;

/// The record's name.
const FILE: &str = "failed-images.json";
/// How many are remembered; the record must not grow for ever.
const REMEMBERED: usize = 32;

/// Digests of images and why each failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FailedImages(BTreeMap<String, String>);

impl FailedImages {
    /// Why the image failed, if it did.
    pub fn reason(&self, digest: &str) -> Option<&str> {
        self.0.get(digest).map(String::as_str)
    }

    /// Remembers a failure.
    pub fn remember(&mut self, digest: String, reason: String) {
        self.0.insert(digest, reason);
        while self.0.len() > REMEMBERED {
            self.0.pop_first();
        }
    }

    /// Forgets an image that has proved itself.
    pub fn forget(&mut self, digest: &str) {
        self.0.remove(digest);
    }

    /// Adds what another record knows.
    pub fn merge(&mut self, other: FailedImages) {
        for (digest, reason) in other.0 {
            self.remember(digest, reason);
        }
    }

    /// Reads the record in a directory; an absent one is empty.
    pub fn load(directory: &Path) -> anyhow::Result<Self> {
        Ok(whole_file::read_json(&directory.join(FILE))?.unwrap_or_default())
    }

    /// Writes the record to a directory, whole or not at all.
    pub fn save(&self, directory: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(&directory.join(FILE), 0o644, self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn failures_are_remembered_over_a_save_and_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let records = directory.path().join("instar");
        let mut failed = FailedImages::load(&records).unwrap();
        assert_eq!(failed.reason("sha256:a"), None);
        for number in 0..REMEMBERED + 3 {
            failed.remember(format!("sha256:{number:03}"), "hangs".into());
        }
        failed.save(&records).unwrap();
        let loaded = FailedImages::load(&records).unwrap();
        assert_eq!(loaded, failed);
        assert_eq!(loaded.0.len(), REMEMBERED);
        assert_eq!(loaded.reason("sha256:034"), Some("hangs"));
    }

    /// What a boot does that finishes an upgrade which was forced.
    #[test]
    fn an_image_that_has_proved_itself_is_forgotten_over_a_reboot() {
        let directory = tempfile::tempdir().unwrap();
        let mut failed = FailedImages::default();
        failed.remember("sha256:a".into(), "hangs".into());
        failed.remember("sha256:b".into(), "hangs too".into());
        failed.save(directory.path()).unwrap();
        let mut next = FailedImages::default();
        next.merge(FailedImages::load(directory.path()).unwrap());
        next.forget("sha256:a");
        next.save(directory.path()).unwrap();
        let loaded = FailedImages::load(directory.path()).unwrap();
        assert_eq!(loaded.reason("sha256:a"), None);
        assert_eq!(loaded.reason("sha256:b"), Some("hangs too"));
    }

    #[test]
    fn a_damaged_record_is_an_error_not_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        assert!(FailedImages::load(directory.path()).is_err());
    }
}
