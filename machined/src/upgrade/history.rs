//! The history of upgrades: the versions that this machine has run, and the upgrades that failed.
//!
//! The history only observes: the running version once the machine is up, and failures in the event log. It is kept on STATE, and also in a
//! memfd that init holds, because a machine without a disk has upgrades without a reboot too.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use instar_api::events::EventPayload;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::origin::ReleaseOrigin;
use crate::base::blocking_io::{self, ANSWER};
use crate::base::{sealed_json, whole_file};
use crate::disk::{OwnedDiskStatus, STATE};
use crate::init_link::{InitLink, Scope};
use crate::state_partition::UPGRADE_HISTORY;
use crate::store::event_log::{EventLog, Start};
use crate::store::{MachineStage, MachineStatus, Resource, Store};

/// The name of the history in errors.
const WHAT: &str = "the history of upgrades";
/// The sequences whose failures are noted.
const UPGRADES: [&str; 2] = ["upgrade", "stageUpgrade"];
/// Limit on entries; the oldest are dropped.
const REMEMBERED: usize = 32;
/// Upper limit of the file, in bytes: more than 32 entries with long reasons need. A larger file was not written by us.
const LARGEST: u64 = 1 << 20;
/// Limit on a reason, in bytes; the rest is cut off.
const REASON: usize = 2048;

/// The outcome of an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The version runs: the machine came up with it.
    Running,
    /// The version does not run; the one before goes on.
    Failed,
}

/// One entry of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeFact {
    /// Number of the entry; counts up.
    pub number: u64,
    /// The end of the upgrade, in seconds since 1970.
    pub at: u64,
    /// The version that ran before; empty for the first entry of a machine.
    pub from: String,
    /// The version that runs since then: the old one after a failure.
    pub version: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Why it failed; empty otherwise.
    #[serde(default)]
    pub reason: String,
    /// The installer image that the version came from, as its caller named it; empty if unknown.
    #[serde(default)]
    pub image: String,
    /// Digest of that image's manifest.
    #[serde(default)]
    pub digest: String,
    /// The date in that image's config.
    #[serde(default)]
    pub created: String,
}

impl Resource for UpgradeFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "UpgradeRecords.instar.dev";
}

/// All entries, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct History(Vec<UpgradeFact>);

/// The running version, and the image that it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Runs {
    version: String,
    origin: Option<ReleaseOrigin>,
}

impl History {
    /// Notes that this version runs, unless it did before. The same version from another image is another one. Returns whether the entry is
    /// new.
    fn note_running(&mut self, runs: &Runs, at: u64) -> bool {
        let is_same = |last: &UpgradeFact| {
            let digest = runs.origin.as_ref().map(|origin| origin.digest.to_string());
            last.version == runs.version
                && (last.digest.is_empty() || digest.is_none_or(|digest| digest == last.digest))
        };
        if self.0.last().is_some_and(is_same) {
            return false;
        }
        let from = self.0.last().map(|last| last.version.clone());
        self.push(from.unwrap_or_default(), runs, at, Outcome::Running, "");
        true
    }

    /// Notes that an upgrade failed and this version runs.
    fn note_failure(&mut self, runs: &Runs, at: u64, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON)];
        self.push(runs.version.clone(), runs, at, Outcome::Failed, reason);
    }

    fn push(&mut self, from: String, runs: &Runs, at: u64, outcome: Outcome, reason: &str) {
        let number = self.0.last().map_or(1, |last| last.number + 1);
        let origin = runs.origin.as_ref();
        let told = |part: fn(&ReleaseOrigin) -> String| origin.map_or_else(String::new, part);
        self.0.push(UpgradeFact {
            number,
            at,
            from,
            version: runs.version.clone(),
            outcome,
            reason: reason.to_owned(),
            image: told(|origin| origin.image.clone()),
            digest: told(|origin| origin.digest.to_string()),
            created: told(|origin| origin.created.clone().unwrap_or_default()),
        });
        let gone = self.0.len().saturating_sub(REMEMBERED);
        self.0.drain(..gone);
    }

    /// Reads the history; None if there is none.
    fn load(state: &Path) -> anyhow::Result<Option<Self>> {
        whole_file::read_json(&state.join(UPGRADE_HISTORY.name))
    }

    fn save(&self, state: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(
            &state.join(UPGRADE_HISTORY.name),
            UPGRADE_HISTORY.mode,
            self,
        )
    }

    fn from_memfd(memfd: &OwnedFd) -> anyhow::Result<Self> {
        sealed_json::from_memfd(memfd, WHAT, LARGEST)
    }

    fn to_memfd(&self) -> anyhow::Result<OwnedFd> {
        sealed_json::to_memfd(HistoryKeeper::NAME, WHAT, self)
    }
}

/// Keeps the history up to date.
pub struct HistoryKeeper {
    /// The running version.
    pub version: String,
    /// Reports failed upgrades.
    pub events: EventLog,
    /// Reports that the machine is up; the history is published there.
    pub store: Store,
    /// Keeps the history for the next generation.
    pub init: InitLink,
    /// Reports whether STATE is mounted, which keeps the history over a reboot.
    pub disk: watch::Receiver<OwnedDiskStatus>,
    /// The history that the generation before left with init under [`HistoryKeeper::NAME`].
    pub left: Option<OwnedFd>,
}

impl HistoryKeeper {
    /// The name under which init keeps the history.
    pub const NAME: &'static str = "upgrade-history";

    /// Keeps the history up to date for as long as machined runs.
    pub async fn keep(mut self) {
        let mut events = self.events.read(&Start::History);
        // Before the machine runs, it is unknown whether this version stays, and STATE is not mounted.
        self.store
            .wait_for(MachineStatus::ID, |status: Option<&MachineStatus>| {
                status.is_some_and(|status| status.stage == MachineStage::Running)
            })
            .await;
        let mut history = self.find().await;
        if history.note_running(&self.runs(), seconds(SystemTime::now())) {
            self.publish(&history);
            self.store(&history).await;
        } else {
            self.publish(&history);
        }
        loop {
            let event = events.next().await;
            let EventPayload::Sequence(sequence) = &event.payload else {
                continue;
            };
            if let Some(error) = &sequence.error
                && UPGRADES.contains(&sequence.sequence.as_str())
            {
                history.note_failure(&self.runs(), seconds(event.at), &error.message);
                self.publish(&history);
                self.store(&history).await;
            }
        }
    }

    /// Returns the running version, and its image as far as it is known by now.
    fn runs(&self) -> Runs {
        Runs {
            version: self.version.clone(),
            origin: self.store.get(ReleaseOrigin::RUNNING),
        }
    }

    /// Finds the history that the generation before left, else the one on STATE. Starts a new one if it cannot be read.
    async fn find(&mut self) -> History {
        if let Some(left) = self.left.take() {
            match History::from_memfd(&left) {
                Ok(history) => return history,
                Err(error) => tracing::warn!(
                    "the history of upgrades left by the last generation is lost: {error:#}"
                ),
            }
        }
        let Some(state) = self.state() else {
            return History::default();
        };
        let loaded = blocking_io::within(ANSWER, move || History::load(state)).await;
        match loaded.map_err(anyhow::Error::from).flatten() {
            Ok(history) => history.unwrap_or_default(),
            Err(error) => {
                tracing::warn!("the history of upgrades is begun anew: {error:#}");
                History::default()
            }
        }
    }

    /// Returns STATE's mount point while it is mounted.
    fn state(&self) -> Option<&'static Path> {
        let is_mounted = self.disk.borrow().state.is_some();
        is_mounted.then(|| Path::new(STATE))
    }

    /// Shows the history to clients.
    fn publish(&self, history: &History) {
        for entry in &history.0 {
            self.store.put(&id(entry), entry.clone());
        }
        let oldest = history.0.first().map_or(0, |entry| entry.number);
        for (_, shown) in self.store.list::<UpgradeFact>() {
            if shown.number < oldest {
                self.store.remove::<UpgradeFact>(&id(&shown));
            }
        }
    }

    /// Stores the history for the next generation. A failure is only logged.
    async fn store(&self, history: &History) {
        let kept = async {
            let memfd = history.to_memfd()?;
            self.init.keep(Self::NAME, Scope::Machine, &memfd).await
        };
        if let Err(error) = kept.await {
            tracing::warn!("init does not keep the history of upgrades: {error:#}");
        }
        let Some(state) = self.state() else {
            return;
        };
        let history = history.clone();
        let saved = blocking_io::within(ANSWER, move || history.save(state)).await;
        let saved = saved.map_err(anyhow::Error::from).flatten();
        UPGRADE_HISTORY.note_written(&saved);
        if let Err(error) = saved {
            tracing::warn!("the history of upgrades is not kept over a reboot: {error:#}");
        }
    }
}

/// Returns the id of an entry; sorted as text, as clients list them.
fn id(entry: &UpgradeFact) -> String {
    format!("{:06}", entry.number)
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::values::Digest;

    fn runs(version: &str) -> Runs {
        Runs {
            version: version.to_owned(),
            origin: None,
        }
    }

    fn runs_from(version: &str, image: &str) -> Runs {
        let origin = ReleaseOrigin {
            version: version.to_owned(),
            image: image.to_owned(),
            digest: Digest::of(image.as_bytes()),
            created: None,
        };
        Runs {
            origin: Some(origin),
            ..runs(version)
        }
    }

    #[test]
    fn a_version_from_another_image_is_another_one() {
        let mut history = History::default();
        assert!(history.note_running(&runs("v0.1.0"), 1));
        // Only now its image is known.
        assert!(!history.note_running(&runs_from("v0.1.0", "a"), 2));
        assert!(history.note_running(&runs_from("v0.2.0", "b"), 3));
        assert!(!history.note_running(&runs_from("v0.2.0", "b"), 4));
        assert!(!history.note_running(&runs("v0.2.0"), 5));
        assert!(history.note_running(&runs_from("v0.2.0", "c"), 6));
        let last = history.0.last().unwrap();
        assert_eq!((last.from.as_str(), last.image.as_str()), ("v0.2.0", "c"));
        assert_eq!(last.digest, Digest::of(b"c").to_string());
    }

    #[test]
    fn versions_and_failures_follow_each_other() {
        let mut history = History::default();
        assert!(history.note_running(&runs("v0.1.0"), 1));
        assert!(!history.note_running(&runs("v0.1.0"), 2));
        assert!(history.note_running(&runs("v0.2.0"), 3));
        history.note_failure(&runs("v0.2.0"), 4, "no room");
        assert!(!history.note_running(&runs("v0.2.0"), 5));
        assert!(history.note_running(&runs("v0.1.0"), 6));
        let told: Vec<_> = history
            .0
            .iter()
            .map(|it| (it.number, it.from.as_str(), it.version.as_str(), it.outcome))
            .collect();
        assert_eq!(
            told,
            [
                (1, "", "v0.1.0", Outcome::Running),
                (2, "v0.1.0", "v0.2.0", Outcome::Running),
                (3, "v0.2.0", "v0.2.0", Outcome::Failed),
                (4, "v0.2.0", "v0.1.0", Outcome::Running),
            ]
        );
    }

    #[test]
    fn it_is_bounded_and_comes_back_from_both_places() {
        let mut history = History::default();
        for at in 0..100 {
            history.note_failure(&runs("v0.1.0"), at, &"ä".repeat(REASON));
        }
        assert_eq!(history.0.len(), REMEMBERED);
        assert_eq!(history.0[0].number, 100 - REMEMBERED as u64 + 1);
        assert!(history.0[0].reason.len() <= REASON);
        let state = tempfile::tempdir().unwrap();
        assert_eq!(History::load(state.path()).unwrap(), None);
        history.save(state.path()).unwrap();
        assert_eq!(
            History::load(state.path()).unwrap().as_ref(),
            Some(&history)
        );
        assert_eq!(
            History::from_memfd(&history.to_memfd().unwrap()).unwrap(),
            history
        );
        std::fs::write(state.path().join(UPGRADE_HISTORY.name), "{").unwrap();
        assert!(History::load(state.path()).is_err());
    }
}
