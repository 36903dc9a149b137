//! The installer image that a version came from. The running version's own is in the store, for the API.
//!
//! It is known from the pull, and handed over with the upgrade: in the hand-over, in the record of the upgrade, and, once the version is
//! committed, in a table on STATE. The table's key is the UKI that the image brought: boot entries get other numbers at a rollback.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use crate::base::whole_file;
use crate::state_partition::RELEASE_ORIGINS;
use crate::store::Resource;
use crate::values::Digest;

/// Limit on the table: three slots, and some that were replaced.
const REMEMBERED: usize = 8;

/// The image that a version came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseOrigin {
    /// The version.
    pub version: String,
    /// The image's name as the caller gave it.
    pub image: String,
    /// Digest of its manifest.
    pub digest: Digest,
    /// The date in its config, if it has one.
    #[serde(default)]
    pub created: Option<String>,
}

impl Resource for ReleaseOrigin {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "ReleaseOrigins.instar.dev";
}

impl ReleaseOrigin {
    /// The id of the running version's own in the store; without it, the version came from a medium.
    pub const RUNNING: &'static str = "running";
}

/// Returns the date in an image's config, if it is one.
pub fn created(text: Option<&str>) -> Option<String> {
    let created = text?.parse::<jiff::Timestamp>().ok()?;
    Some(created.to_string())
}

/// The origins of the versions on the disk, newest last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReleaseOrigins(Vec<Installed>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Installed {
    /// BLAKE3 of the UKI.
    uki: String,
    #[serde(flatten)]
    origin: ReleaseOrigin,
    #[serde(flatten)]
    evidence: Evidence,
}

impl ReleaseOrigins {
    /// Returns the origin of the version with this UKI.
    pub fn of(&self, uki: &str) -> Option<&ReleaseOrigin> {
        Some(self.installed(uki)?.0)
    }

    /// Returns the origin of the version with this UKI, and what rules and keys judge it by.
    pub fn installed(&self, uki: &str) -> Option<(&ReleaseOrigin, &Evidence)> {
        let installed = self.0.iter().find(|installed| installed.uki == uki)?;
        Some((&installed.origin, &installed.evidence))
    }

    /// Notes where the version with this UKI came from; drops the oldest if there are too many.
    pub fn note(&mut self, uki: String, origin: ReleaseOrigin, evidence: Evidence) {
        self.0.retain(|installed| installed.uki != uki);
        self.0.push(Installed {
            uki,
            origin,
            evidence,
        });
        let surplus = self.0.len().saturating_sub(REMEMBERED);
        self.0.drain(..surplus);
    }

    /// Reads the table; empty if there is none.
    pub fn load(state: &Path) -> anyhow::Result<Self> {
        Ok(whole_file::read_json(&state.join(RELEASE_ORIGINS.name))?.unwrap_or_default())
    }

    /// Writes the table, whole or not at all.
    pub fn save(&self, state: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(
            &state.join(RELEASE_ORIGINS.name),
            RELEASE_ORIGINS.mode,
            self,
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::oci::ImageConfig;
    use crate::upgrade::written::WrittenImage;

    fn origin(version: &str) -> ReleaseOrigin {
        ReleaseOrigin {
            version: version.to_owned(),
            image: format!("r.io/installer:{version}"),
            digest: Digest::of(version.as_bytes()),
            created: None,
        }
    }

    fn note(origins: &mut ReleaseOrigins, uki: &str, version: &str) {
        origins.note(uki.to_owned(), origin(version), Evidence::default());
    }

    #[test]
    fn a_version_is_known_by_its_uki() {
        let state = tempfile::tempdir().unwrap();
        let mut origins = ReleaseOrigins::load(state.path()).unwrap();
        assert_eq!(origins.of("a"), None);
        note(&mut origins, "a", "v0.1.0");
        note(&mut origins, "b", "v0.2.0");
        note(&mut origins, "a", "v0.3.0");
        origins.save(state.path()).unwrap();
        let mut loaded = ReleaseOrigins::load(state.path()).unwrap();
        assert_eq!(loaded, origins);
        assert_eq!(loaded.of("a"), Some(&origin("v0.3.0")));
        for number in 1..REMEMBERED {
            note(&mut loaded, &number.to_string(), "v0.4.0");
        }
        assert_eq!(loaded.of("b"), None, "the oldest is forgotten");
        assert!(loaded.of("a").is_some());
    }

    /// With them a rollback is judged while the image and its registry are gone.
    #[test]
    fn a_version_keeps_what_rules_and_keys_judge_it_by() {
        let state = tempfile::tempdir().unwrap();
        let evidence = Evidence {
            index: Some(Digest::of(b"index")),
            written: WrittenImage::of(&ImageConfig::default()),
            signed_by: Some(Digest::of(b"key")),
            signatures: None,
        };
        let mut origins = ReleaseOrigins::default();
        origins.note("a".to_owned(), origin("v0.1.0"), evidence.clone());
        origins.save(state.path()).unwrap();
        let loaded = ReleaseOrigins::load(state.path()).unwrap();
        let known = loaded.installed("a");
        assert_eq!(known, Some((&origin("v0.1.0"), &evidence)));
    }

    #[test]
    fn the_table_of_another_version_is_read() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join(RELEASE_ORIGINS.name);
        let digest = Digest::of(b"v0.1.0");
        for of_another in ["", r#","signed_by":{"keys":[]},"signatures":7,"new":1"#] {
            let table = format!(
                r#"[{{"uki":"a","version":"v0.1.0","image":"r.io/installer:v0.1.0","digest":"{digest}"{of_another}}}]"#
            );
            std::fs::write(&file, table).unwrap();
            let loaded = ReleaseOrigins::load(state.path()).unwrap();
            let known = (&origin("v0.1.0"), &Evidence::default());
            assert_eq!(loaded.installed("a"), Some(known), "{of_another}");
        }
    }

    #[test]
    fn a_date_is_a_date() {
        let date = created(Some("2026-11-25T23:53:40.5+01:00"));
        assert_eq!(date.as_deref(), Some("2026-11-25T22:53:40.5Z"));
        for text in [None, Some(""), Some("yesterday"), Some("2026-11-25")] {
            assert_eq!(created(text), None, "{text:?}");
        }
    }
}
