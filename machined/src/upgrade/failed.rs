//! Images that failed on this machine: refused from then on unless forced.

use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base::whole_file;
use crate::state_partition::FAILED_IMAGES;

/// Limit on remembered images; the record must not grow for ever.
const REMEMBERED: usize = 32;

/// Digests of images with the reason of each failure, oldest first. In JSON a map, as versions before this one write and read it: its
/// entries are in the order of the failures, until such a version has written it again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailedImages(Vec<(String, String)>);

impl FailedImages {
    /// Returns why the image failed, if it did.
    pub fn reason(&self, digest: &str) -> Option<&str> {
        let mut failures = self.0.iter();
        let (_, reason) = failures.find(|(failed, _)| failed == digest)?;
        Some(reason)
    }

    /// Remembers a failure as the newest one; drops the oldest if there are too many.
    pub fn remember(&mut self, digest: String, reason: String) {
        self.forget(&digest);
        self.0.push((digest, reason));
        self.forget_oldest();
    }

    /// Drops an image that has proved itself.
    pub fn forget(&mut self, digest: &str) {
        self.0.retain(|(failed, _)| failed != digest);
    }

    /// Adds the entries of an older record. An entry that is here already is newer.
    pub fn merge(&mut self, mut older: FailedImages) {
        older.0.retain(|(digest, _)| self.reason(digest).is_none());
        self.0.splice(0..0, older.0);
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        let surplus = self.0.len().saturating_sub(REMEMBERED);
        self.0.drain(..surplus);
    }

    /// Reads the record in a directory; empty if there is none.
    pub fn load(directory: &Path) -> anyhow::Result<Self> {
        Ok(whole_file::read_json(&directory.join(FAILED_IMAGES.name))?.unwrap_or_default())
    }

    /// Writes the record to a directory, whole or not at all.
    pub fn save(&self, directory: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(
            &directory.join(FAILED_IMAGES.name),
            FAILED_IMAGES.mode,
            self,
        )
    }
}

impl Serialize for FailedImages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(digest, reason)| (digest, reason)))
    }
}

impl<'de> Deserialize<'de> for FailedImages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

/// Reads a map in the order in which it was written.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = FailedImages;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from digests to reasons")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FailedImages, A::Error> {
        let mut failed = FailedImages::default();
        while let Some((digest, reason)) = map.next_entry()? {
            failed.remember(digest, reason);
        }
        Ok(failed)
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
            failed.remember(name(number), "hangs".into());
        }
        failed.save(&records).unwrap();
        let loaded = FailedImages::load(&records).unwrap();
        assert_eq!(loaded, failed);
        assert_eq!(loaded.0.len(), REMEMBERED);
        assert_eq!(loaded.reason(&name(REMEMBERED + 2)), Some("hangs"));
    }

    /// Digests come in no order: 7 is prime to 101, so that these don't either.
    fn name(number: usize) -> String {
        format!("sha256:{:03}", (number + 1) * 7 % 101)
    }

    #[test]
    fn the_oldest_failure_is_forgotten_whatever_its_digest() {
        let mut failed = FailedImages::default();
        for number in 0..REMEMBERED {
            failed.remember(name(number), "hangs".into());
        }
        // It fails again, so it is the newest.
        failed.remember(name(0), "hangs still".into());
        let newest = name(REMEMBERED);
        failed.remember(newest.clone(), "hangs".into());
        let text = serde_json::to_string(&failed).unwrap();
        let mut failed: FailedImages = serde_json::from_str(&text).unwrap();
        assert_eq!(failed.reason(&name(1)), None);
        for kept in [name(0), name(2), newest.clone()] {
            assert!(failed.reason(&kept).is_some(), "{kept}");
        }
        failed.remember(name(REMEMBERED + 1), "hangs".into());
        assert_eq!(failed.reason(&name(2)), None);
        assert_eq!(failed.reason(&name(0)), Some("hangs still"));

        let mut older = FailedImages::default();
        older.remember("sha256:older".into(), "hangs".into());
        older.remember(newest.clone(), "an older reason".into());
        failed.merge(older);
        assert_eq!(failed.reason(&newest), Some("hangs"));
        assert_eq!(
            failed.reason("sha256:older"),
            None,
            "there is no room for it"
        );
    }

    /// The actions of a boot that finishes a forced upgrade.
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
        std::fs::write(directory.path().join(FAILED_IMAGES.name), "{").unwrap();
        assert!(FailedImages::load(directory.path()).is_err());
    }
}
