//! The folder of a rollout: its record, and two locks.
//!
//! `driver.lock` is held for as long as a driver runs, so that two never do; the kernel frees it when the process is gone, however it ended.
//! `record.lock` is held while the record is read, changed and replaced.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use instar_base::whole_file;
use instar_client::{Failure, FailureKind};
use instar_rollout::{MachineName, Record};
use instar_rollout_driver::{ConfigChange, Store, Trial};
use instar_rollout_page::Seen;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::members::Way;
use crate::cli::{FleetState, Global};
use crate::target;

const RECORD: &str = "rollout.json";
const DRIVER: &str = "driver.lock";
/// The file with the driver's last view of the nodes. Its loss is no matter: the next round writes it again.
const SEEN: &str = "seen.json";
/// Limit on a change of the record by another process: it takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A rollout as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rollout {
    /// The version or the change of configs that it brings.
    #[serde(flatten)]
    pub(super) subject: Subject,
    /// How each node is reached.
    pub(super) ways: BTreeMap<MachineName, Way>,
    /// The engine's record.
    pub(super) record: Record,
}

/// The version or the change of configs that a rollout brings to its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Subject {
    /// The version in an image.
    Image {
        /// The image as it was named on the command line.
        image: String,
    },
    /// A change of machine configs.
    Config {
        /// The change.
        config: ConfigChange,
        /// How nodes take it.
        how: Trial,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { image } => f.write_str(image),
            Self::Config { config, .. } => config.release().fmt(f),
        }
    }
}

/// Time in which the driver's lock may be held by nobody who goes on to drive: a page looks whether somebody does, or a driver that has saved its end
/// has not freed it yet.
const DRIVER_ENDS: Duration = Duration::from_secs(2);
/// The pause between two tries to get that lock.
const NEXT_TRY: Duration = Duration::from_millis(50);

/// The folder of a rollout.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// The folder that was named, or the default one.
    pub(super) fn of(global: &Global, state: &FleetState) -> Result<Self, Failure> {
        let beside_config = || {
            let config = target::config_path(global)?;
            Some(config.parent()?.join("fleet"))
        };
        match state.state.clone().or_else(beside_config) {
            Some(path) => Ok(Self(path)),
            None => Err(Failure::new(
                FailureKind::Usage,
                "there is no folder for the state of the rollout",
            )
            .advise("name one with --state")),
        }
    }

    /// The folder of this path.
    #[cfg(test)]
    pub(super) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The path of a file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The rollout; none if none was begun here.
    pub(super) fn read(&self) -> Result<Option<Rollout>, Failure> {
        let failed = |why: &str| Failure::new(FailureKind::Failed, why.to_owned());
        let read = whole_file::read_json(&self.0.join(RECORD));
        let read: Option<Rollout> =
            read.map_err(|error| failed("cannot read the rollout").because(error))?;
        if let Some(rollout) = &read {
            let checked = rollout.record.check();
            checked.map_err(|error| failed("cannot use the rollout").because(error))?;
        }
        Ok(read)
    }

    /// The rollout, which has to be there.
    pub(super) fn existing(&self) -> Result<Rollout, Failure> {
        self.read()?.ok_or_else(|| {
            Failure::new(
                FailureKind::Refused,
                format!("there is no rollout in {}", self.0.display()),
            )
            .advise("begin one with `instarctl fleet roll` or `fleet apply`, or name its folder with --state")
        })
    }

    /// Stores a new rollout. The caller drives.
    pub(super) fn begin(&self, rollout: &Rollout) -> Result<(), Failure> {
        let _lock = self.lock_record()?;
        self.save(rollout)
    }

    /// Changes the record, alone. Returns what `change` returns, and the rollout as it is stored now.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut Rollout) -> T,
    ) -> Result<(T, Rollout), Failure> {
        let _lock = self.lock_record()?;
        let before = self.existing()?;
        let mut rollout = before.clone();
        let result = change(&mut rollout);
        if rollout != before {
            self.save(&rollout)?;
        }
        Ok((result, rollout))
    }

    /// Stores what the driver has seen, for the page.
    pub(super) fn keep_seen(&self, seen: &Seen) -> Result<(), Failure> {
        let saved = whole_file::replace_json(&self.0.join(SEEN), 0o600, seen);
        saved.map_err(|error| {
            Failure::new(
                FailureKind::Failed,
                "cannot store what is seen of the nodes",
            )
            .because(error)
        })
    }

    /// The driver's last view of the nodes; an empty one if it cannot be read.
    pub(super) fn seen(&self) -> Seen {
        let seen = whole_file::read_json(&self.0.join(SEEN));
        seen.unwrap_or_default().unwrap_or_default()
    }

    fn save(&self, rollout: &Rollout) -> Result<(), Failure> {
        let saved = whole_file::replace_json(&self.0.join(RECORD), 0o600, rollout);
        saved.map_err(|error| {
            Failure::new(FailureKind::Failed, "cannot store the rollout").because(error)
        })
    }

    /// The lock of the one driver; none if another one runs, and goes on to run.
    pub(super) async fn lock_driver(&self) -> Result<Option<File>, Failure> {
        self.lock_driver_within(DRIVER_ENDS).await
    }

    async fn lock_driver_within(&self, limit: Duration) -> Result<Option<File>, Failure> {
        let file = self.lock_file(DRIVER)?;
        let until = Instant::now() + limit;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(NEXT_TRY).await,
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(no_lock(error)),
            }
        }
    }

    /// Whether a driver runs. Looks share the lock: none takes another one for a driver.
    pub(super) fn has_driver(&self) -> Result<bool, Failure> {
        match self.lock_file(DRIVER)?.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(no_lock(error)),
        }
    }

    /// The failure of a second driver.
    pub(super) fn is_driven(&self) -> Failure {
        let folder = self.0.display();
        Failure::new(
            FailureKind::Refused,
            format!("another command drives the rollout in {folder}"),
        )
        .advise("`instarctl fleet status` shows it; `pause`, `abort` and `rollback` reach it")
    }

    fn lock_record(&self) -> Result<File, Failure> {
        let file = self.lock_file("record.lock")?;
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Failure::new(
                        FailureKind::TimedOut,
                        format!("another command holds the record in {}", self.0.display()),
                    ));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(Failure::io("cannot lock the record", error));
                }
            }
        }
    }

    fn lock_file(&self, name: &str) -> Result<File, Failure> {
        let path = self.0.join(name);
        let open = |path: &Path| {
            std::fs::create_dir_all(&self.0)?;
            File::options().create(true).append(true).open(path)
        };
        open(&path).map_err(|error| Failure::io(format!("cannot write {}", path.display()), error))
    }
}

fn no_lock(error: std::io::Error) -> Failure {
    Failure::io("cannot lock the rollout", error)
}

impl Store for Folder {
    async fn read(&self) -> Result<Record, Failure> {
        Ok(self.existing()?.record)
    }

    async fn change<T>(
        &self,
        mut change: impl FnMut(&mut Record) -> T,
    ) -> Result<(T, Record), Failure> {
        let changed = Folder::change(self, |rollout| change(&mut rollout.record))?;
        Ok((changed.0, changed.1.record))
    }

    /// The kernel holds the driver's lock for as long as this process lives.
    fn may_act(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use instar_rollout::{Command, Member, Policy, Release};

    use super::*;

    fn rollout() -> Rollout {
        let target = Release {
            version: "v0.2.0".to_owned(),
            digest: None,
            image: None,
        };
        let member = Member {
            pool: String::new(),
            labels: BTreeSet::new(),
        };
        let members = [(MachineName::from("lamp-1"), member)].into();
        Rollout {
            subject: Subject::Image {
                image: "r/i:v0.2.0".to_owned(),
            },
            ways: BTreeMap::new(),
            record: Record::begin(target, vec![Policy::default()], members).unwrap(),
        }
    }

    #[test]
    fn a_rollout_is_kept_and_changed_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder(directory.path().join("fleet"));
        assert_eq!(folder.read().unwrap(), None);
        assert!(folder.existing().is_err());
        folder.begin(&rollout()).unwrap();
        let pause = Command::Pause("lunch".to_owned());
        let (told, stored) = folder.change(|it| it.record.command(pause)).unwrap();
        told.unwrap();
        assert_eq!(stored.record.paused.as_deref(), Some("lunch"));
        assert_eq!(folder.existing().unwrap(), stored);
    }

    #[tokio::test]
    async fn two_drivers_never_run() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder(directory.path().to_owned());
        let lock = async || folder.lock_driver_within(Duration::ZERO).await.unwrap();
        assert!(!folder.has_driver().unwrap());
        let first = lock().await;
        assert!(first.is_some() && folder.has_driver().unwrap());
        assert!(lock().await.is_none());
        drop(first);
        assert!(lock().await.is_some());
    }

    /// A command that is to drive would end, and nobody would drive.
    #[tokio::test]
    async fn a_driver_that_ends_and_a_page_that_looks_keep_no_other_from_driving() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder(directory.path().to_owned());
        let ending = folder.lock_driver().await.unwrap();
        // The first one is polled first, and finds the lock held.
        let (next, ()) = tokio::join!(folder.lock_driver(), async { drop(ending) });
        let next = next.unwrap();
        assert!(next.is_some());
        drop(next);
        let look = folder.lock_file(DRIVER).unwrap();
        look.try_lock_shared().unwrap();
        assert!(!folder.has_driver().unwrap(), "another page looks");
        let (next, ()) = tokio::join!(folder.lock_driver(), async { drop(look) });
        assert!(next.unwrap().is_some());
    }

    #[test]
    fn a_record_of_another_format_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder(directory.path().to_owned());
        let mut other = rollout();
        other.record.format = 99;
        folder.begin(&other).unwrap();
        let failure = folder.read().unwrap_err();
        assert!(failure.chain().contains("format 99"), "{}", failure.chain());
    }
}
