//! The preparation of an upgrade ahead: its images are pinned, then the version is put beside the running one. A value without side effects.
//!
//! ```text
//!                all images are pinned, window open            it is written
//!   Fetching ───────────────────────────────────► Writing ───────────────────► Prepared
//!      ▲                                             │
//!      └──────── the pause is over ──── Failed ◄─────┘ refused, busy, or the disk failed
//! ```
//!
//! Another upgrade, a rollback and the commit of another version end it.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::state::PAUSES;
use super::terms::Terms;
use crate::store::Resource;
use crate::values::{Digest, ImageReference};

/// An upgrade that is to be prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparation {
    /// The installer's image.
    pub image: ImageReference,
    /// Its digest, when the preparation was asked for.
    pub digest: Digest,
    /// The version in it.
    pub version: String,
    /// The images that have to be pinned first, the installer's among them.
    pub images: Vec<ImageReference>,
    /// When the images may be fetched and the version written.
    pub terms: Terms,
    /// Whether rules between releases are overridden.
    pub force: bool,
    /// The version that ran then.
    pub during: String,
    /// Whether the version is written.
    pub is_written: bool,
}

impl Preparation {
    /// The name of exactly the image that was asked for.
    pub fn pinned_name(&self) -> String {
        match self.image.digest() {
            Some(_) => self.image.to_string(),
            None => format!("{}@{}", self.image, self.digest),
        }
    }
}

/// How far a preparation is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Progress {
    /// Its images come; `get pins` shows each.
    #[default]
    Fetching,
    /// The version is put beside the running one.
    Writing,
    /// A reboot starts it.
    Prepared,
    /// It was not written.
    Failed {
        /// Why.
        reason: String,
        /// The time of the next try.
        next: SystemTime,
        /// The number of tries that failed.
        failures: u32,
    },
}

/// The preparation as `get upgrades` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparationFact {
    /// The preparation.
    pub preparation: Preparation,
    /// How far it is.
    pub progress: Progress,
}

impl PreparationFact {
    /// The one resource's id.
    pub const ID: &'static str = "next";
}

impl Resource for PreparationFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "UpgradePreparations.instar.dev";
}

impl Progress {
    /// The time until the version may be written, once its images are pinned; `None`: there is nothing to do.
    pub fn pause(&self, now: SystemTime) -> Option<Duration> {
        match self {
            Progress::Fetching | Progress::Writing => Some(Duration::ZERO),
            Progress::Prepared => None,
            Progress::Failed { next, .. } => {
                match next.duration_since(now).unwrap_or_default() {
                    // The clock was set back.
                    pause if pause > PAUSES.longest => Some(Duration::ZERO),
                    pause => Some(pause),
                }
            }
        }
    }

    /// The progress after a try.
    #[must_use]
    pub fn after_try(&self, failure: Option<String>, now: SystemTime) -> Self {
        let Some(reason) = failure else {
            return Progress::Prepared;
        };
        let failures = match self {
            Progress::Failed { failures, .. } => failures.saturating_add(1),
            _ => 1,
        };
        Progress::Failed {
            reason,
            next: now + PAUSES.after(failures),
            failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_was_not_written_is_tried_again_after_a_pause() {
        let now = SystemTime::UNIX_EPOCH;
        let seconds = Duration::from_secs;
        let failed = |failures, pause| Progress::Failed {
            reason: "busy".to_owned(),
            next: now + seconds(pause),
            failures,
        };
        let busy = || Some("busy".to_owned());
        for (before, pause, failure, expected) in [
            (Progress::Fetching, Some(0), None, Progress::Prepared),
            (Progress::Fetching, Some(0), busy(), failed(1, 30)),
            (failed(1, 30), Some(30), busy(), failed(2, 60)),
            (failed(2, 60), Some(60), None, Progress::Prepared),
            (failed(9, 3_601), Some(0), busy(), failed(10, 3600)),
            (Progress::Writing, Some(0), busy(), failed(1, 30)),
            (Progress::Prepared, None, None, Progress::Prepared),
        ] {
            assert_eq!(before.pause(now), pause.map(seconds), "{before:?}");
            assert_eq!(before.after_try(failure, now), expected, "{before:?}");
        }
    }
}
