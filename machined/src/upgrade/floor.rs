//! The machine's floor: the highest floor of all releases that were committed here. No upgrade leads below it, unless it is forced.
//!
//! A release sets a floor when a version before it must not run again: it has a hole that is known, or it cannot read what the release
//! writes. The floor rises when the release is committed, never at its trial, so that a trial that fails leads back to any version.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::whole_file;
use crate::state_partition::RELEASE_FLOOR;
use crate::values::Version;

/// The oldest version that the machine takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// The version.
    pub version: Version,
    /// The release that set it.
    pub set_by: String,
}

impl Floor {
    /// Returns the floor that a release sets, if it sets one.
    pub fn of_release(floor: Option<&Version>, release: &str) -> Option<Self> {
        floor.map(|version| Floor {
            version: version.clone(),
            set_by: release.to_owned(),
        })
    }

    /// Returns the higher one; of two equal ones the first, which is the older one.
    pub fn higher(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) if other.version > one.version => Some(other),
            (Some(one), _) => Some(one),
            (None, other) => other,
        }
    }

    /// Reads the floor; None if no release has set one.
    pub fn load(state: &Path) -> anyhow::Result<Option<Self>> {
        whole_file::read_json(&state.join(RELEASE_FLOOR.name))
    }

    /// Writes the floor, unless the same one or a higher one is there. A file that cannot be read is left for whoever looks into it, until
    /// the next upgrade is committed. `replaces`: this is that commit.
    pub fn keep(&self, state: &Path, replaces: bool) -> anyhow::Result<()> {
        match Self::load(state) {
            Ok(Some(kept)) if kept.version >= self.version => Ok(()),
            Err(_) if !replaces => Ok(()),
            _ => self.save(state),
        }
    }

    /// Writes the floor, whole or not at all.
    fn save(&self, state: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(&state.join(RELEASE_FLOOR.name), RELEASE_FLOOR.mode, self)
    }
}

/// The floor that upgrades and rollbacks are judged by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FloorInForce {
    /// The highest floor that is known.
    pub known: Option<Floor>,
    /// There may be a higher one, on STATE, that cannot be read.
    pub unread: Option<UnreadFloor>,
}

/// A record of the floor that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadFloor {
    /// The running version. No floor is above it unless it was forced, and then a version from it on is no step back either.
    pub running: String,
    /// Why it cannot be read.
    pub why: String,
}

impl FloorInForce {
    /// The floor as it was read from STATE.
    pub fn of_record(read: anyhow::Result<Option<Floor>>, running: &str) -> Self {
        match read {
            Ok(known) => FloorInForce {
                known,
                unread: None,
            },
            Err(error) => FloorInForce {
                known: None,
                unread: Some(UnreadFloor {
                    running: running.to_owned(),
                    why: format!("{error:#}"),
                }),
            },
        }
    }

    /// Returns the floor that the commit of an upgrade writes in place of a record that cannot be read: the version that was left, or the new
    /// one if that is older. None while the record can be read.
    pub fn instead_of_unread(&self, from: &str, to: &str) -> Option<Floor> {
        self.unread.as_ref()?;
        let versions = [from, to].map(|version| version.parse::<Version>().ok());
        let older = versions.into_iter().flatten().min();
        Floor::of_release(older.as_ref(), to)
    }

    /// Returns the oldest version that is taken, if there is one.
    pub fn oldest(&self) -> Option<Version> {
        let known = self.known.as_ref().map(|floor| floor.version.clone());
        let unread = self.unread.as_ref();
        let running = unread.and_then(|unread| unread.running.parse().ok());
        known.max(running)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn floor(version: &str, set_by: &str) -> Option<Floor> {
        Floor::of_release(Some(&version.parse().unwrap()), set_by)
    }

    #[test]
    fn the_floor_only_rises() {
        let cases = [
            (None, None, None),
            (None, floor("v0.2.0", "b"), floor("v0.2.0", "b")),
            (floor("v0.2.0", "a"), None, floor("v0.2.0", "a")),
            (
                floor("v0.2.0", "a"),
                floor("v0.1.0", "b"),
                floor("v0.2.0", "a"),
            ),
            (
                floor("v0.2.0", "a"),
                floor("v0.2.0", "b"),
                floor("v0.2.0", "a"),
            ),
            (
                floor("v0.9.0", "a"),
                floor("v0.10.0", "b"),
                floor("v0.10.0", "b"),
            ),
            (
                floor("v0.2.0-rc.1", "a"),
                floor("v0.2.0", "b"),
                floor("v0.2.0", "b"),
            ),
        ];
        for (one, other, expected) in cases {
            let told = format!("{one:?} and {other:?}");
            assert_eq!(Floor::higher(one, other), expected, "{told}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_leaves_the_running_version_as_the_oldest() {
        let state = tempfile::tempdir().unwrap();
        let read = || FloorInForce::of_record(Floor::load(state.path()), "v0.2.0");
        assert_eq!(read(), FloorInForce::default());
        let kept = floor("v0.2.0", "v0.3.0");
        kept.as_ref().unwrap().keep(state.path(), true).unwrap();
        assert_eq!(
            (read().known.as_ref(), read().unread),
            (kept.as_ref(), None)
        );
        std::fs::write(state.path().join(RELEASE_FLOOR.name), "{").unwrap();
        let unread = read();
        assert_eq!(unread.oldest(), "v0.2.0".parse().ok());
        assert!(
            unread
                .unread
                .as_ref()
                .unwrap()
                .why
                .contains(RELEASE_FLOOR.name)
        );
        for (from, to, floor) in [
            ("v0.1.0", "v0.2.0", "v0.1.0"),
            ("v0.3.0", "v0.2.0", "v0.2.0"),
            ("latest", "v0.2.0", "v0.2.0"),
        ] {
            let instead = unread.instead_of_unread(from, to).unwrap();
            assert_eq!(instead.version.to_string(), floor, "{from} to {to}");
            assert_eq!(
                FloorInForce::default().instead_of_unread(from, to),
                None,
                "its record can be read"
            );
        }
        let instead = unread.instead_of_unread("v0.1.0", "v0.2.0").unwrap();
        instead.keep(state.path(), false).unwrap();
        assert!(Floor::load(state.path()).is_err(), "it was replaced");
        instead.keep(state.path(), true).unwrap();
        assert_eq!(read().known, Some(instead));
    }

    #[test]
    fn it_is_kept_and_damage_is_an_error_not_the_absence_of_a_floor() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Floor::load(state.path()).unwrap(), None);
        let kept = floor("v0.2.0", "v0.3.0");
        // Its rise may have come before STATE was there.
        kept.as_ref().unwrap().keep(state.path(), false).unwrap();
        assert_eq!(Floor::load(state.path()).unwrap(), kept);
        let lower = floor("v0.1.0", "v0.1.0").unwrap();
        lower.keep(state.path(), true).unwrap();
        assert_eq!(Floor::load(state.path()).unwrap(), kept);
        for damaged in ["", "{", "{}", r#"{"version":"latest","set_by":""}"#] {
            std::fs::write(state.path().join(RELEASE_FLOOR.name), damaged).unwrap();
            assert!(Floor::load(state.path()).is_err(), "{damaged}");
            lower.keep(state.path(), false).unwrap();
            assert!(Floor::load(state.path()).is_err(), "{damaged}");
        }
        lower.keep(state.path(), true).unwrap();
        assert_eq!(Floor::load(state.path()).unwrap(), Some(lower));
    }
}
