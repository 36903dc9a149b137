//! The installer image that a version came from. The running version's own is in the store, for the API.
//!
//! It is known from the pull, and handed over with the upgrade: in the hand-over, in the record of the upgrade, and, once the version is
//! committed, in a table on STATE. The table's key is the UKI that the image brought: boot entries get other numbers at a rollback.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::handover::{Handover, PendingUpgrade};
use crate::base::whole_file;
use crate::init_link::StartReason;
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

    /// Returns the origin that an upgrade brings; None if its image is unknown.
    pub fn of_upgrade(upgrade: &PendingUpgrade) -> Option<Self> {
        Some(ReleaseOrigin {
            version: upgrade.to.clone(),
            image: upgrade.image.clone(),
            digest: upgrade.digest.parse().ok()?,
            created: upgrade.created.clone(),
        })
    }

    /// Returns the origin of the running version as far as the hand-over tells it: that of the upgrade which this start tries, or that of the
    /// generation which left the hand-over.
    pub fn handed_over(handover: &Handover, start: StartReason, running: &str) -> Option<Self> {
        let upgrade = handover.upgrade.as_ref();
        let tried = upgrade.filter(|upgrade| {
            // After a rollback the version of before runs, even if the other one had the same name.
            start != StartReason::Rollback && upgrade.to == running
        });
        match tried {
            Some(upgrade) => Self::of_upgrade(upgrade),
            None => handover.origin.clone().filter(|it| it.version == running),
        }
    }
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
}

impl ReleaseOrigins {
    /// Returns the origin of the version with this UKI.
    pub fn of(&self, uki: &str) -> Option<&ReleaseOrigin> {
        let installed = self.0.iter().find(|installed| installed.uki == uki)?;
        Some(&installed.origin)
    }

    /// Notes where the version with this UKI came from; drops the oldest if there are too many.
    pub fn note(&mut self, uki: String, origin: ReleaseOrigin) {
        self.0.retain(|installed| installed.uki != uki);
        self.0.push(Installed { uki, origin });
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

    fn origin(version: &str) -> ReleaseOrigin {
        ReleaseOrigin {
            version: version.to_owned(),
            image: format!("r.io/installer:{version}"),
            digest: Digest::of(version.as_bytes()),
            created: None,
        }
    }

    fn pending(version: &str) -> PendingUpgrade {
        PendingUpgrade {
            to: version.to_owned(),
            image: format!("r.io/installer:{version}"),
            digest: Digest::of(version.as_bytes()).to_string(),
            ..PendingUpgrade::default()
        }
    }

    #[test]
    fn the_hand_over_tells_the_origin_of_what_runs() {
        use StartReason::{Fresh, Next, Restart, Rollback};
        let left = |origin, upgrade| Handover {
            origin,
            upgrade,
            ..Handover::default()
        };
        let (old, new) = (|| Some(origin("v0.1.0")), || Some(origin("v0.2.0")));
        let to_new = || Some(pending("v0.2.0"));
        for (handover, start, running, expected) in [
            (left(old(), to_new()), Next, "v0.2.0", new()),
            (left(old(), to_new()), Restart, "v0.2.0", new()),
            (left(None, to_new()), Next, "v0.2.0", new()),
            (left(old(), to_new()), Rollback, "v0.1.0", old()),
            (left(None, to_new()), Rollback, "v0.1.0", None),
            (left(old(), None), Restart, "v0.1.0", old()),
            (left(old(), None), Fresh, "v0.1.0", old()),
            // The same version anew, from another image.
            (
                left(old(), Some(pending("v0.1.0"))),
                Rollback,
                "v0.1.0",
                old(),
            ),
            // What cannot be right is not told.
            (left(old(), None), Restart, "v0.2.0", None),
            (left(None, Some(PendingUpgrade::default())), Next, "", None),
            (Handover::default(), Next, "v0.1.0", None),
        ] {
            let told = ReleaseOrigin::handed_over(&handover, start, running);
            assert_eq!(told, expected, "{start:?} {running} {handover:?}");
        }
    }

    #[test]
    fn a_version_is_known_by_its_uki() {
        let state = tempfile::tempdir().unwrap();
        let mut origins = ReleaseOrigins::load(state.path()).unwrap();
        assert_eq!(origins.of("a"), None);
        origins.note("a".to_owned(), origin("v0.1.0"));
        origins.note("b".to_owned(), origin("v0.2.0"));
        origins.note("a".to_owned(), origin("v0.3.0"));
        origins.save(state.path()).unwrap();
        let mut loaded = ReleaseOrigins::load(state.path()).unwrap();
        assert_eq!(loaded, origins);
        assert_eq!(loaded.of("a"), Some(&origin("v0.3.0")));
        for number in 1..REMEMBERED {
            loaded.note(number.to_string(), origin("v0.4.0"));
        }
        assert_eq!(loaded.of("b"), None, "the oldest is forgotten");
        assert!(loaded.of("a").is_some());
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
