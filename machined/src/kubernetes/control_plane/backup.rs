//! Snapshots of etcd that the machine makes by itself, before another version of Kubernetes or of etcd writes its data.
//!
//! ```text
//! room for the database ──► new ──► checked ──► BEFORE-before-AFTER.db ──► change     names the snapshot of the change that is under way
//! ```
//!
//! - etcd runs on the same disk: `new` leaves it the room that it needs, and goes on every way out.
//! - The snapshot of a change that is under way stays as it is, however often that change begins anew: a later one would hold data that the
//!   programs of the next version have written.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use anyhow::{Context as _, anyhow};
use rustix::fs::statvfs;
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::super::home;
use super::etcd::Etcd;
use super::recovery::BESIDE;
use super::snapshot_file::check;
use crate::base::byte_size::human_short;
use crate::base::{blocking_io, removal, whole_file};
use crate::config::ControlPlane;

/// Time limit for a whole snapshot, with the disk that it is written to.
const SNAPSHOT: Duration = Duration::from_secs(600);
/// Limit on snapshots that are kept; the oldest are removed.
const MOST: usize = 3;
/// Bytes after which the room is looked at again.
const LOOK: u64 = 1 << 20;
/// The file that a snapshot is written to.
const NEW: &str = "new";
/// The file with the name of the snapshot of the change that is under way.
const UNDER_WAY: &str = "change";
/// The ending of a snapshot's name.
const ENDING: &str = "db";
/// Limit on the characters of an image in the name of a snapshot: two of them and the words between fit into the name of a file.
const LONGEST_NAME: usize = 100;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// etcd answers, and there is no room.
    #[error(
        "a snapshot of etcd's database, and the room that etcd itself needs beside it, take {} on EPHEMERAL, and {} are free there; remove \
         images or data of pods, have etcd give back what its database does not use (`etcd defrag`), or use a larger disk",
        human_short(*needed),
        human_short(*free)
    )]
    NoRoom {
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// etcd does not answer.
    #[error(transparent)]
    Silent(anyhow::Error),
    /// etcd answers, and gives no whole snapshot; or the disk failed.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// A change of the programs that write etcd's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The name of the snapshot before it.
    pub snapshot: String,
    /// The words for it.
    pub told: String,
    /// Whether the version of Kubernetes is another one, and not that of etcd alone.
    pub of_version: bool,
}

/// A version of Kubernetes, and an image of etcd.
pub type Programs<Text> = (Text, Text);

impl Change {
    /// Returns the change from the previous programs, as far as they are known; `None` if they stay the same.
    pub fn between(before: Programs<Option<&str>>, after: Programs<&str>) -> Option<Self> {
        let other = |before: Option<&'_ str>, after: &str| {
            let before = before.filter(|before| *before != after);
            before.map(str::to_owned)
        };
        if let Some(version) = other(before.0, after.0) {
            let after = after.0;
            return Some(Change {
                snapshot: format!("{version}-before-{after}"),
                told: format!("{version} becomes {after}"),
                of_version: true,
            });
        }
        let etcd = other(before.1, after.1)?;
        let after = after.1;
        Some(Change {
            snapshot: format!("{}-before-{}", name_of(&etcd), name_of(after)),
            told: format!("etcd's image {etcd} becomes {after}"),
            of_version: false,
        })
    }
}

/// Returns an image's last name and its tag, as a part of a file's name.
fn name_of(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    let of_a_name = |it: char| match it.is_ascii_alphanumeric() || ".-_".contains(it) {
        true => it,
        false => '-',
    };
    name.chars().take(LONGEST_NAME).map(of_a_name).collect()
}

/// The directory of snapshots that the machine makes by itself.
fn snapshots() -> PathBuf {
    home().join("snapshots")
}

/// Keeps a snapshot of this name for a change that is to begin; the oldest others go. If that change is under way, the snapshot of its begin
/// stays.
///
/// # Errors
/// There is no room, etcd does not answer, or the file cannot be written.
pub async fn keep_snapshot(plane: &ControlPlane, name: &str) -> Result<PathBuf, BackupError> {
    let directory = snapshots();
    let kept = timeout(SNAPSHOT, keep(plane, &directory, name)).await;
    let late = || anyhow!("it was not whole after {} s", SNAPSHOT.as_secs());
    let kept = kept.unwrap_or_else(|_| Err(late().into()));
    if kept.is_err() {
        discard(directory).await;
    }
    kept
}

/// Forgets the change that is under way, as it has come to its end, and what is left of a snapshot that has not.
///
/// # Errors
/// The disk failed.
pub async fn forget_change() -> Result<(), BackupError> {
    on_disk(|| {
        let directory = snapshots();
        for file in [NEW, UNDER_WAY] {
            let removed = removal::file(&directory.join(file));
            removed.with_context(|| format!("remove {file} of {}", directory.display()))?;
        }
        Ok(())
    })
    .await
}

async fn keep(plane: &ControlPlane, directory: &Path, name: &str) -> Result<PathBuf, BackupError> {
    let (of, named) = (directory.to_owned(), name.to_owned());
    if let Some(kept) = on_disk(move || begin(&of, &named)).await? {
        return Ok(kept);
    }
    let etcd = Etcd::connect(plane).await.map_err(BackupError::Silent)?;
    let database = etcd.status().await.map_err(asked)?.db_size;
    let database = u64::try_from(database).unwrap_or(0);
    let of = directory.to_owned();
    on_disk(move || make_room(&of, database)).await?;
    let mut snapshot = etcd.snapshot().await.map_err(asked)?;
    let mut new = New::begin(directory, database).await?;
    while let Some(bytes) = snapshot.piece().await.map_err(anyhow::Error::from)? {
        new.add(&bytes).await?;
    }
    new.finish(name).await
}

/// Judges an error of etcd's first answers.
fn asked(error: Status) -> BackupError {
    match error.code() {
        Code::Unavailable | Code::DeadlineExceeded => BackupError::Silent(error.into()),
        _ => BackupError::Failed(error.into()),
    }
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    let done = blocking_io::within(SNAPSHOT, work).await;
    done.map_err(anyhow::Error::from)?
}

/// Removes what is there of a snapshot that has not come to its end: it takes room from etcd.
async fn discard(directory: PathBuf) {
    let new = directory.join(NEW);
    let removed = on_disk(move || Ok(removal::file(&new).context("remove it")?)).await;
    if let Err(error) = removed {
        tracing::warn!("a part of a snapshot of etcd stays until the next one comes: {error:#}");
    }
}

/// Makes the directory, and removes what an earlier try has left. Returns the snapshot of this name if its change is under way. Blocks.
fn begin(directory: &Path, name: &str) -> Result<Option<PathBuf>, BackupError> {
    let failed = || format!("make {}", directory.display());
    fs::create_dir_all(directory).with_context(failed)?;
    removal::file(&directory.join(NEW)).with_context(failed)?;
    let under_way = fs::read_to_string(directory.join(UNDER_WAY)).ok();
    let path = path_of(directory, name);
    Ok((under_way.as_deref() == Some(name) && path.exists()).then_some(path))
}

fn path_of(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.{ENDING}"))
}

/// A snapshot that comes piece by piece.
struct New {
    directory: PathBuf,
    file: BufWriter<tokio::fs::File>,
    /// Bytes of the database that are still to come.
    left: u64,
    /// Bytes since the room was looked at.
    since_look: u64,
}

impl New {
    /// Begins a snapshot of a database with so many bytes.
    async fn begin(directory: &Path, database: u64) -> Result<Self, BackupError> {
        let mut options = tokio::fs::File::options();
        // It holds all secrets of the cluster.
        options.write(true).create(true).truncate(true).mode(0o600);
        let path = directory.join(NEW);
        let file = options.open(&path).await;
        let file = file.with_context(|| format!("make {}", path.display()))?;
        Ok(New {
            directory: directory.to_owned(),
            file: BufWriter::with_capacity(LOOK as usize, file),
            left: database,
            since_look: 0,
        })
    }

    async fn add(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        let written = self.file.write_all(bytes).await;
        self.judged(written)?;
        let length = bytes.len() as u64;
        self.left = self.left.saturating_sub(length);
        self.since_look += length;
        if self.since_look >= LOOK {
            self.since_look = 0;
            demand_room(&self.directory, self.left)?;
        }
        Ok(())
    }

    /// Checks all of it, and keeps it under this name.
    async fn finish(mut self, name: &str) -> Result<PathBuf, BackupError> {
        // The end of the last write is told here: `sync_all` alone succeeds after one that has failed.
        let flushed = self.file.flush().await;
        self.judged(flushed)?;
        let synced = self.file.get_ref().sync_all().await;
        self.judged(synced)?;
        let (directory, name) = (self.directory, name.to_owned());
        on_disk(move || take_in(&directory, &name)).await
    }

    fn judged(&self, done: io::Result<()>) -> Result<(), BackupError> {
        match done {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(BackupError::NoRoom {
                needed: self.left.saturating_add(BESIDE),
                free: free(&self.directory).unwrap_or(0),
            }),
            done => {
                let path = || format!("write {}", self.directory.join(NEW).display());
                Ok(done.with_context(path)?)
            }
        }
    }
}

/// Keeps a new snapshot that is whole under this name, for the change that is under way from now on. Blocks.
fn take_in(directory: &Path, name: &str) -> Result<PathBuf, BackupError> {
    let (new, path) = (directory.join(NEW), path_of(directory, name));
    let mut file = fs::File::open(&new).context("open the snapshot")?;
    check(&mut file, true).context("etcd has sent a snapshot that cannot be restored")?;
    let failed = || format!("keep {}", path.display());
    fs::rename(&new, &path).with_context(failed)?;
    let synced = fs::File::open(directory).and_then(|it| it.sync_all());
    synced.with_context(failed)?;
    let noted = whole_file::replace(&directory.join(UNDER_WAY), 0o600, name.as_bytes());
    noted.with_context(failed)?;
    if let Err(error) = remove_old(directory, &path) {
        tracing::warn!("old snapshots of etcd stay: {error}");
    }
    Ok(path)
}

/// A snapshot that is kept.
struct Kept {
    path: PathBuf,
    bytes: u64,
}

/// Lists the snapshots, oldest first.
fn kept(directory: &Path) -> io::Result<Vec<Kept>> {
    let mut all = Vec::<(SystemTime, PathBuf, u64)>::new();
    for entry in fs::read_dir(directory)? {
        let (path, metadata) = entry.and_then(|it| Ok((it.path(), it.metadata()?)))?;
        if path.extension().is_some_and(|it| it == ENDING) {
            all.push((metadata.modified()?, path, metadata.len()));
        }
    }
    all.sort();
    let all = all.into_iter();
    Ok(all.map(|(_, path, bytes)| Kept { path, bytes }).collect())
}

/// Removes the oldest snapshots beside the newest one, which the clock may call the oldest.
fn remove_old(directory: &Path, newest: &Path) -> io::Result<()> {
    let mut others = kept(directory)?;
    others.retain(|it| it.path != newest);
    let surplus = others.len().saturating_sub(MOST - 1);
    for Kept { path, .. } in &others[..surplus] {
        removal::file(path)?;
    }
    Ok(())
}

/// Makes room for so many bytes of a database: the oldest snapshots go if that is enough, and never the newest. Blocks.
fn make_room(directory: &Path, bytes: u64) -> Result<(), BackupError> {
    let (needed, free) = match demand_room(directory, bytes) {
        Err(BackupError::NoRoom { needed, free }) => (needed, free),
        judged => return judged,
    };
    let kept = kept(directory).context("list the snapshots of etcd")?;
    let sizes: Vec<u64> = kept.iter().map(|it| it.bytes).collect();
    let lacking = needed.saturating_sub(free);
    let Some(surplus) = surplus(&sizes, lacking) else {
        return Err(BackupError::NoRoom { needed, free });
    };
    for Kept { path, .. } in &kept[..surplus] {
        tracing::info!("{} makes room for another snapshot of etcd", path.display());
        removal::file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    demand_room(directory, bytes)
}

/// Returns how many of these snapshots, oldest first, have to go so that this many bytes are free; `None` if only the newest would be enough.
fn surplus(sizes: &[u64], lacking: u64) -> Option<usize> {
    let (_newest, others) = sizes.split_last()?;
    let mut freed = 0_u64;
    let is_enough = |size: &u64| {
        freed = freed.saturating_add(*size);
        freed >= lacking
    };
    others.iter().position(is_enough).map(|at| at + 1)
}

/// Demands room for so many bytes, and for what etcd needs beside them.
fn demand_room(directory: &Path, bytes: u64) -> Result<(), BackupError> {
    let free = free(directory).context("look at the room on EPHEMERAL")?;
    let needed = bytes.saturating_add(BESIDE);
    match free < needed {
        true => Err(BackupError::NoRoom { needed, free }),
        false => Ok(()),
    }
}

/// Returns the free bytes of the directory's filesystem.
fn free(directory: &Path) -> io::Result<u64> {
    let disk = statvfs(directory)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::FileTimes;

    use super::super::folder_for_tests::names;
    use super::super::snapshot_file::smallest;
    use super::*;

    const NAME: &str = "v1.36.0-before-v1.37.0";

    /// Takes a snapshot of these pieces.
    async fn take(directory: &Path, pieces: &[&[u8]]) -> Result<PathBuf, BackupError> {
        assert_eq!(begin(directory, NAME).unwrap(), None);
        let mut new = New::begin(directory, 5 * 4096).await?;
        for piece in pieces {
            new.add(piece).await?;
        }
        new.finish(NAME).await
    }

    #[test]
    fn another_version_or_another_etcd_is_a_change() {
        let etcd = "registry.k8s.io/etcd:3.6.8-0";
        let other = "r.example.com/a/etcd:v3.7.3@sha256:00";
        let table = [
            ((None, None), ("v2", etcd), None),
            ((Some("v2"), Some(etcd)), ("v2", etcd), None),
            ((Some("v1"), None), ("v2", etcd), Some("v1-before-v2")),
            (
                (Some("v1"), Some(etcd)),
                ("v2", other),
                Some("v1-before-v2"),
            ),
            (
                (Some("v2"), Some(etcd)),
                ("v2", other),
                Some("etcd-3.6.8-0-before-etcd-v3.7.3-sha256-00"),
            ),
        ];
        for (before, after, expected) in table {
            let change = Change::between(before, after);
            let name = change.as_ref().map(|it| it.snapshot.as_str());
            assert_eq!(name, expected, "{before:?} {after:?}");
            let of_version = change.is_some_and(|it| it.of_version);
            assert_eq!(of_version, expected == Some("v1-before-v2"));
        }
        let longest = format!("r.io/{}", "a".repeat(300));
        let change = Change::between((None, Some(&longest)), ("v2", etcd)).unwrap();
        assert!(change.snapshot.len() < 250, "{change:?}");
    }

    #[tokio::test]
    async fn the_snapshot_of_a_change_stays_until_that_is_over() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path();
        let snapshot = smallest();
        let path = take(directory, &[&snapshot[..5000], &snapshot[5000..]]).await;
        let path = path.unwrap();
        assert_eq!(fs::read(&path).unwrap(), snapshot);
        // The change begins anew.
        assert_eq!(begin(directory, NAME).unwrap(), Some(path.clone()));
        // Another one takes its own, and so does the same one when it comes again later.
        assert_eq!(begin(directory, "v1.37.0-before-v1.36.0").unwrap(), None);
        fs::remove_file(directory.join(UNDER_WAY)).unwrap();
        assert_eq!(begin(directory, NAME).unwrap(), None);
    }

    #[tokio::test]
    async fn a_snapshot_that_is_not_whole_takes_no_others_place() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path();
        fs::write(path_of(directory, NAME), "of before").unwrap();
        let snapshot = smallest();
        let mut altered = snapshot.clone();
        altered[3 * 4096] ^= 1;
        for bytes in [&snapshot[..3 * 4096], &snapshot[..5 * 4096], &altered[..]] {
            let refused = take(directory, &[bytes]).await.unwrap_err();
            assert!(matches!(refused, BackupError::Failed(_)), "{refused}");
            discard(directory.to_owned()).await;
            assert_eq!(names(directory), [format!("{NAME}.db")]);
        }
        let kept = fs::read(path_of(directory, NAME)).unwrap();
        assert_eq!(kept, b"of before");
    }

    #[tokio::test]
    async fn a_snapshot_without_room_is_refused_with_numbers() {
        let root = tempfile::tempdir().unwrap();
        let refused = make_room(root.path(), 1 << 60).unwrap_err().to_string();
        for words in ["take 1024.0 PiB", "are free there", "etcd defrag"] {
            assert!(refused.contains(words), "{refused}");
        }
        // A database that has grown, or a disk that fills while the snapshot comes.
        let mut new = New::begin(root.path(), 1 << 60).await.unwrap();
        let refused = new.add(&vec![0; LOOK as usize]).await.unwrap_err();
        assert!(matches!(refused, BackupError::NoRoom { .. }), "{refused}");
    }

    #[test]
    fn the_newest_snapshot_stays_also_with_a_clock_that_is_behind() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path();
        for (name, at) in [("a", 10), ("b", 40), ("c", 30), ("new", 20), ("d", 5)] {
            let path = path_of(directory, name);
            fs::write(&path, name).unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_times(FileTimes::new().set_modified(at)).unwrap();
        }
        fs::write(directory.join(UNDER_WAY), "d").unwrap();
        remove_old(directory, &path_of(directory, "d")).unwrap();
        assert_eq!(names(directory), ["b.db", "c.db", UNDER_WAY, "d.db"]);
    }

    #[test]
    fn old_snapshots_make_room_if_that_is_enough() {
        let table = [
            (&[][..], 1, None),
            (&[100], 1, None),
            (&[10, 20, 100], 1, Some(1)),
            (&[10, 20, 100], 11, Some(2)),
            (&[10, 20, 100], 31, None),
        ];
        for (sizes, lacking, expected) in table {
            assert_eq!(surplus(sizes, lacking), expected, "{sizes:?} {lacking}");
        }
    }
}
