//! The snapshot of etcd before a change of versions: what comes of the change if there is none.
//!
//! ```text
//! it is there                            the change goes on
//! there is no room                       the change waits, until there is
//! etcd answers, and gives no whole one   the change waits for two more tries, and goes on without
//! etcd does not answer                   the change goes on without: another version may be what mends it
//! etcd may be about to answer            the change waits for that, within a limit
//! ```
//!
//! etcd may be about to answer where kubelet has not been running for long, as after a boot, and where it has answered to this change before, also
//! before the boot: a note keeps that there was no room ([`WaitsForRoom`]).
//!
//! The way back to proven extensions takes no snapshot, and waits for nothing: it leaves a version that is not well, and the data of before that
//! one are kept already.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::config::ControlPlane;
use crate::kubernetes::control_plane::backup::{BackupError, Change, keep_snapshot};
use crate::kubernetes::waits_for_room::WaitsForRoom;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_secs(30);
/// Tries with an etcd that answers.
const TRIES: u32 = 3;
/// For how long an etcd may be silent that may be about to answer.
const SILENCE: Duration = Duration::from_secs(600);
/// The age of kubelet at which it has started etcd.
const STARTED: Duration = Duration::from_secs(300);
/// For how long a version that came without a snapshot is told.
const TOLD: Duration = Duration::from_secs(24 * 3600);

/// The snapshots of a control plane before its changes.
#[derive(Default)]
pub(super) struct Backup {
    held: Option<Held>,
    /// The change that went on without a snapshot, and when.
    missing: Option<(Instant, String)>,
    /// The change that goes on without a snapshot, up to its end: what it waited for is not waited for again.
    decided: Option<Change>,
}

/// The machine at the time of a change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    /// Whether the extensions to come are those that were proven last.
    pub(super) is_return: bool,
    /// Whether the previous version is here, so that it can run on.
    pub(super) runs_on: bool,
    /// For how long kubelet, which starts etcd, has been running; none if it does not run.
    pub(super) kubelet_has_run: Option<Duration>,
    /// Whether this change has waited for room before, perhaps in an earlier boot.
    pub(super) has_waited_for_room: bool,
}

/// A change that waits.
struct Held {
    change: Change,
    /// When the last try was over.
    at: Instant,
    /// Tries that an etcd that answers has failed.
    failures: u32,
    /// Whether there was no room at one of the tries.
    for_room: bool,
    /// Since when etcd has been silent.
    silent_since: Option<Instant>,
    why: String,
}

impl Backup {
    /// Whether a change waits for its snapshot.
    pub(super) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Forgets the change that waits, as nothing is to change any more.
    pub(super) fn let_go(&mut self) {
        self.held = None;
        self.decided = None;
    }

    /// Whether a change waits that has found no room for its snapshot.
    fn waits_for_room(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.for_room)
    }

    /// Says that a version came without a snapshot.
    pub(super) fn problem(&self) -> Option<String> {
        let (at, missing) = self.missing.as_ref()?;
        (at.elapsed() < TOLD).then(|| missing.clone())
    }

    /// Keeps etcd's data before a change.
    ///
    /// # Errors
    /// The change waits, for this reason.
    pub(super) async fn before(
        &mut self,
        plane: &ControlPlane,
        change: &Change,
        situation: Situation,
    ) -> anyhow::Result<()> {
        let keep = keep_snapshot(plane, &change.snapshot);
        let may_begin = self.before_by(keep, change, situation).await;
        if self.waits_for_room() && !situation.has_waited_for_room {
            let noted = WaitsForRoom::note(&change.snapshot).await;
            // A disk without room for a snapshot may have none for the note.
            if let Err(error) = noted {
                tracing::warn!("Kubernetes: a reboot may end the wait for room: {error:#}");
            }
        }
        may_begin
    }

    async fn before_by(
        &mut self,
        keep: impl Future<Output = Result<PathBuf, BackupError>>,
        change: &Change,
        situation: Situation,
    ) -> anyhow::Result<()> {
        if situation.is_way_back(change) {
            self.let_go();
            return Ok(());
        }
        if let Some(why) = self.waits(change, Instant::now()) {
            bail!(why.to_owned());
        }
        let kept = keep.await;
        self.judge(change, kept, situation, Instant::now())
    }

    /// Says why this change waits, if it is too early for another try.
    fn waits(&self, change: &Change, now: Instant) -> Option<&str> {
        let held = self.held.as_ref().filter(|it| it.change == *change)?;
        let is_early = now.saturating_duration_since(held.at) < PAUSE;
        is_early.then_some(held.why.as_str())
    }

    /// Judges a try.
    fn judge(
        &mut self,
        change: &Change,
        kept: Result<PathBuf, BackupError>,
        situation: Situation,
        now: Instant,
    ) -> anyhow::Result<()> {
        let before = self.held.take().filter(|it| it.change == *change);
        let told = &change.told;
        let error = match kept {
            Ok(path) => {
                let path = path.display();
                tracing::info!("Kubernetes: {told}; etcd's data of before are in {path}");
                self.missing = None;
                self.decided = None;
                return Ok(());
            }
            Err(error) => error,
        };
        let held = Held::after(before, change, &error, now).with_earlier(situation);
        let is_decided = self.decided.as_ref() == Some(change);
        if held.goes_on_waiting(&error, situation, is_decided) {
            let why = held.why.clone();
            self.held = Some(held);
            bail!(why);
        }
        self.decided = Some(change.clone());
        tracing::warn!("Kubernetes: {told} without a snapshot of etcd: {error:#}");
        let missing = format!(
            "{told} without a snapshot of etcd, as there was none to be had: {error:#}. If the cluster runs, take one by `etcd snapshot`"
        );
        self.missing = Some((now, missing));
        Ok(())
    }
}

impl Situation {
    /// Whether this change leaves a version of Kubernetes that was never proven.
    fn is_way_back(self, change: &Change) -> bool {
        // Proven extensions may get another etcd: that is no way back.
        self.is_return && change.of_version
    }
}

impl Held {
    /// Counts a try without a snapshot.
    fn after(before: Option<Held>, change: &Change, error: &BackupError, now: Instant) -> Self {
        let (failures, for_room, silent_since) = match before {
            Some(it) => (it.failures, it.for_room, it.silent_since),
            None => (0, false, None),
        };
        let told = &change.told;
        let is_silent = matches!(error, BackupError::Silent(_));
        let until = match is_silent {
            true => format!(", or etcd has been silent for {} s", SILENCE.as_secs()),
            false => String::new(),
        };
        Held {
            change: change.clone(),
            at: now,
            failures: failures + u32::from(matches!(error, BackupError::Failed(_))),
            for_room: for_room || matches!(error, BackupError::NoRoom { .. }),
            silent_since: is_silent.then(|| silent_since.unwrap_or(now)),
            why: format!("{told} once there is a snapshot of etcd{until}: {error:#}"),
        }
    }

    /// Adds what is known of this change from before this machined.
    fn with_earlier(self, situation: Situation) -> Self {
        Held {
            for_room: self.for_room || situation.has_waited_for_room,
            ..self
        }
    }

    /// Whether the change waits after its last try, which ended so.
    fn goes_on_waiting(&self, error: &BackupError, situation: Situation, is_decided: bool) -> bool {
        match error {
            BackupError::NoRoom { .. } => true,
            BackupError::Failed(_) => !is_decided && self.failures < TRIES,
            BackupError::Silent(_) => {
                let is_young = situation.kubelet_has_run.is_none_or(|it| it < STARTED);
                let may_answer = self.for_room || is_young;
                let silent_since = self.silent_since.unwrap_or(self.at);
                // Without the previous version nothing starts etcd, and it stays silent.
                let is_over = self.at.saturating_duration_since(silent_since) >= SILENCE;
                !is_decided && situation.runs_on && may_answer && !is_over
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use anyhow::anyhow;

    use super::*;

    fn change(after: &str, etcd: &str) -> Change {
        Change::between((Some("v1"), Some("etcd:1")), (after, etcd)).unwrap()
    }

    fn no_room() -> BackupError {
        BackupError::NoRoom {
            needed: 3 << 30,
            free: 1 << 30,
        }
    }

    fn failed() -> BackupError {
        BackupError::Failed(anyhow!("altered"))
    }

    fn silent() -> BackupError {
        BackupError::Silent(anyhow!("refused"))
    }

    /// Another version, over a kubelet that has run for an hour.
    const FORWARD: Situation = Situation {
        is_return: false,
        runs_on: true,
        kubelet_has_run: Some(Duration::from_secs(3600)),
        has_waited_for_room: false,
    };
    const BOOTED: Situation = Situation {
        kubelet_has_run: None,
        ..FORWARD
    };
    const BACK: Situation = Situation {
        is_return: true,
        ..BOOTED
    };
    /// After a boot of a machine that had no room for the snapshot before that.
    const BOOTED_WAITING: Situation = Situation {
        has_waited_for_room: true,
        ..BOOTED
    };
    const NOTHING_OF_BEFORE: Situation = Situation {
        runs_on: false,
        ..BOOTED
    };

    #[test]
    fn a_change_waits_for_room_and_goes_on_without_an_etcd_that_answers() {
        let v2 = change("v2", "etcd:1");
        let etcd = change("v1", "etcd:2");
        // Each try, five minutes after the one before: no room, failed, or silent.
        let table = [
            (&v2, FORWARD, "", false, false),
            (&v2, FORWARD, "n", true, false),
            (&v2, FORWARD, "nnnnnn", true, false),
            (&v2, FORWARD, "f", true, false),
            (&v2, FORWARD, "ff", true, false),
            (&v2, FORWARD, "fff", false, true),
            // Tries that found no room are no failures.
            (&v2, FORWARD, "nnnff", true, false),
            (&v2, FORWARD, "nfnfnf", false, true),
            (&v2, FORWARD, "s", false, true),
            // An etcd that starts again, while the change waits for room.
            (&v2, FORWARD, "ns", true, false),
            (&v2, FORWARD, "nssns", true, false),
            (&v2, FORWARD, "nsss", false, true),
            (&v2, FORWARD, "fs", false, true),
            // After a boot.
            (&v2, BOOTED, "s", true, false),
            (&v2, BOOTED, "ss", true, false),
            (&v2, BOOTED, "sss", false, true),
            (&v2, BOOTED, "ssn", true, false),
            (&v2, NOTHING_OF_BEFORE, "s", false, true),
            (&v2, NOTHING_OF_BEFORE, "n", true, false),
            // What was waited for in vain is not waited for again.
            (&v2, BOOTED, "ssss", false, true),
            (&v2, FORWARD, "ffff", false, true),
            // An OS that brings another etcd begins with a boot.
            (&etcd, FORWARD, "n", true, false),
            (&etcd, FORWARD, "s", false, true),
            (&etcd, BOOTED, "s", true, false),
            (&etcd, BOOTED, "sss", false, true),
            (&etcd, BOOTED, "ns", true, false),
            // It has waited for room before the boot.
            (&etcd, BOOTED_WAITING, "s", true, false),
            (&etcd, BOOTED_WAITING, "ss", true, false),
            (&etcd, BOOTED_WAITING, "sn", true, false),
            (&etcd, BOOTED_WAITING, "ssn", true, false),
            (&etcd, BOOTED_WAITING, "sss", false, true),
            (&etcd, BOOTED_WAITING, "f", true, false),
            (&v2, BOOTED_WAITING, "s", true, false),
            // Proven extensions with another etcd.
            (&etcd, BACK, "n", true, false),
        ];
        for (change, situation, tries, holds, is_missing) in table {
            let mut backup = Backup::default();
            let mut last = Ok(());
            let mut now = Instant::now();
            for outcome in tries.chars() {
                let error = match outcome {
                    'n' => no_room(),
                    'f' => failed(),
                    _ => silent(),
                };
                last = backup.judge(change, Err(error), situation, now);
                now += SILENCE / 2;
            }
            let case = format!("{change:?} {situation:?} {tries}");
            assert_eq!(last.is_err(), holds, "{case}");
            assert_eq!(backup.holds(), holds, "{case}");
            assert_eq!(backup.problem().is_some(), is_missing, "{case}");
            // A snapshot ends it all.
            backup
                .judge(change, Ok(PathBuf::new()), situation, now)
                .unwrap();
            assert!(!backup.holds() && backup.problem().is_none(), "{case}");
        }
    }

    #[tokio::test]
    async fn the_way_back_takes_no_snapshot() {
        let (v2, etcd) = (change("v2", "etcd:1"), change("v1", "etcd:2"));
        for (change, situation, takes) in [
            (&v2, BACK, false),
            (&v2, FORWARD, true),
            // Proven extensions with another etcd.
            (&etcd, BACK, true),
        ] {
            let has_taken = Cell::new(false);
            let keep = async {
                has_taken.set(true);
                Ok(PathBuf::new())
            };
            let mut backup = Backup::default();
            backup.before_by(keep, change, situation).await.unwrap();
            assert_eq!(has_taken.get(), takes, "{change:?} {situation:?}");
        }
    }

    #[test]
    fn a_change_that_waits_says_why_and_pauses_between_its_tries() {
        let (v2, v3) = (change("v2", "etcd:1"), change("v3", "etcd:1"));
        let now = Instant::now();
        let mut backup = Backup::default();
        assert_eq!(backup.waits(&v2, now), None);
        let why = backup.judge(&v2, Err(no_room()), FORWARD, now).unwrap_err();
        let why = why.to_string();
        for words in ["v1 becomes v2 once", "take 3 GiB", "1 GiB are free"] {
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(backup.waits(&v2, now), Some(why.as_str()));
        assert_eq!(backup.waits(&v2, now + PAUSE), None);
        assert_eq!(backup.waits(&v3, now), None);
        // Tries of another change do not count.
        for change in [&v2, &v3, &v2, &v3] {
            let judged = backup.judge(change, Err(failed()), FORWARD, now);
            judged.unwrap_err();
        }
        backup.let_go();
        assert!(!backup.holds());
        let why = backup.judge(&v2, Err(silent()), BOOTED, now).unwrap_err();
        let words = "v1 becomes v2 once there is a snapshot of etcd, or etcd has been silent for 600 s: refused";
        assert_eq!(why.to_string(), words);
    }
}
