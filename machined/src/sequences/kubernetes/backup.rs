//! The snapshot of etcd before a change of versions: what comes of the change if there is none.
//!
//! ```text
//! it is there                            the change goes on
//! there is no room                       the change waits, until there is
//! etcd answers, and gives no whole one   the change waits for two more tries, and goes on without
//! etcd does not answer                   the change goes on without: another version may be what mends it
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::config::ControlPlane;
use crate::kubernetes::control_plane::backup::{BackupError, Change, keep_snapshot};

/// The pause between two tries.
const PAUSE: Duration = Duration::from_secs(30);
/// Tries with an etcd that answers.
const TRIES: u32 = 3;
/// For how long a version that came without a snapshot is told.
const TOLD: Duration = Duration::from_secs(24 * 3600);

/// The snapshots of a control plane before its changes.
#[derive(Default)]
pub(super) struct Backup {
    held: Option<Held>,
    /// The change that went on without a snapshot, and when.
    missing: Option<(Instant, String)>,
}

/// A change that waits.
struct Held {
    change: Change,
    /// When the last try was over.
    at: Instant,
    tries: u32,
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
    ) -> anyhow::Result<()> {
        if let Some(why) = self.waits(change, Instant::now()) {
            bail!(why.to_owned());
        }
        let kept = keep_snapshot(plane, &change.snapshot).await;
        self.judge(change, kept, Instant::now())
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
        now: Instant,
    ) -> anyhow::Result<()> {
        let before = self.held.take().filter(|it| it.change == *change);
        let tries = before.map_or(0, |it| it.tries) + 1;
        let told = &change.told;
        let error = match kept {
            Ok(path) => {
                let path = path.display();
                tracing::info!("Kubernetes: {told}; etcd's data of before are in {path}");
                self.missing = None;
                return Ok(());
            }
            Err(error) => error,
        };
        let waits = match &error {
            BackupError::NoRoom { .. } => true,
            BackupError::Failed(_) => tries < TRIES,
            BackupError::Silent(_) => false,
        };
        if waits {
            let why = format!("{told} once there is a snapshot of etcd: {error:#}");
            self.held = Some(Held {
                change: change.clone(),
                at: now,
                tries,
                why: why.clone(),
            });
            bail!(why);
        }
        tracing::warn!("Kubernetes: {told} without a snapshot of etcd: {error:#}");
        // Another etcd comes with versions of the OS too, mostly at a boot, when it does not answer yet: that is nobody's to mend.
        if change.of_version {
            let missing = format!(
                "{told} without a snapshot of etcd, as there was none to be had: {error:#}. If the cluster runs, take one by `etcd snapshot`"
            );
            self.missing = Some((now, missing));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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

    #[test]
    fn a_change_waits_for_room_and_goes_on_without_an_etcd_that_answers() {
        let v2 = change("v2", "etcd:1");
        let etcd = change("v1", "etcd:2");
        // Each try: no room, failed, or silent.
        let table = [
            (&v2, "", false, false),
            (&v2, "n", true, false),
            (&v2, "nnnnnn", true, false),
            (&v2, "f", true, false),
            (&v2, "ff", true, false),
            (&v2, "fff", false, true),
            (&v2, "s", false, true),
            (&v2, "ns", false, true),
            (&etcd, "n", true, false),
            (&etcd, "s", false, false),
        ];
        for (change, tries, holds, is_missing) in table {
            let mut backup = Backup::default();
            let mut last = Ok(());
            for outcome in tries.chars() {
                let error = match outcome {
                    'n' => no_room(),
                    'f' => failed(),
                    _ => BackupError::Silent(anyhow!("refused")),
                };
                last = backup.judge(change, Err(error), Instant::now());
            }
            let case = format!("{change:?} {tries}");
            assert_eq!(last.is_err(), holds, "{case}");
            assert_eq!(backup.holds(), holds, "{case}");
            assert_eq!(backup.problem().is_some(), is_missing, "{case}");
            // A snapshot ends it all.
            backup
                .judge(change, Ok(PathBuf::new()), Instant::now())
                .unwrap();
            assert!(!backup.holds() && backup.problem().is_none(), "{case}");
        }
    }

    #[test]
    fn a_change_that_waits_says_why_and_pauses_between_its_tries() {
        let (v2, v3) = (change("v2", "etcd:1"), change("v3", "etcd:1"));
        let now = Instant::now();
        let mut backup = Backup::default();
        assert_eq!(backup.waits(&v2, now), None);
        let why = backup.judge(&v2, Err(no_room()), now).unwrap_err();
        let why = why.to_string();
        for words in ["v1 becomes v2 once", "take 3 GiB", "1 GiB are free"] {
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(backup.waits(&v2, now), Some(why.as_str()));
        assert_eq!(backup.waits(&v2, now + PAUSE), None);
        assert_eq!(backup.waits(&v3, now), None);
        // Tries of another change do not count.
        for change in [&v2, &v3, &v2, &v3] {
            backup.judge(change, Err(failed()), now).unwrap_err();
        }
        backup.let_go();
        assert!(!backup.holds());
    }
}
