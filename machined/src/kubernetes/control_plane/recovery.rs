//! The way of a snapshot to etcd's data: where it waits, the room that it takes, and the moment from which the cluster has begun.
//!
//! ```text
//! EtcdRecover ──► recovery/new ──► recovery/snapshot.db            renamed when all of it has come
//!                                        │  Bootstrap: checked, then etcdutl of etcd's own image
//!                                        ▼
//!                                  recovery/data                    removed first if an earlier try left it
//!                                        │  flushed, then one rename; if damaged data are there: first to recovery/replaced,
//!                                        ▼  with which they change places
//!                                  var/lib/etcd                     the cluster has begun
//! ```
//!
//! A snapshot that does not come whole, or that is refused, is removed: it takes room, and holds all Secrets.
//!
//! A power cut leaves the machine without a cluster (or with its damaged one), or with the restored one: nothing looks at a directory of
//! `recovery` but another recovery, which begins anew.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs, syncfs};
use tokio::io::{AsyncWriteExt as _, BufWriter};

use super::super::home;
use super::manifests::PEERS;
use super::write::etcd_data;
use crate::base::byte_size::human_short;
use crate::base::removal;

/// The largest snapshot that is taken: etcd warns about quotas above this.
const LARGEST: u64 = 8 << 30;
/// Bytes beside the database that a restored directory takes: two files of the log, which etcd makes 64 MiB long, and what the database grows by
/// at its first start.
pub(super) const BESIDE: u64 = 256 << 20;
/// The number that is added to the revision of a snapshot: more than a cluster wrote since it was taken, a week of 1,500 writes a second.
const REVISIONS_AHEAD: u64 = 1_000_000_000;
/// Bytes after which the room is looked at again.
const LOOK: u64 = 1 << 20;

/// Why a snapshot is not taken.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// It is too large.
    #[error(
        "the snapshot has more than {}, the most that is taken",
        human_short(LARGEST)
    )]
    TooLarge,
    /// There is no room.
    #[error(
        "there is no room for the snapshot: {} of it are here, to restore them takes {} more, and {} are free on EPHEMERAL; remove images or \
         files, or use a larger disk",
        human_short(*here),
        human_short(*needed),
        human_short(*free)
    )]
    NoRoom {
        /// Bytes that are here.
        here: u64,
        /// Bytes that restoring takes.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// It cannot be written.
    #[error("the snapshot cannot be written below {}", directory().display())]
    Io(#[from] io::Error),
}

/// The directory of all of it.
pub fn directory() -> PathBuf {
    home().join("recovery")
}

/// The name of a snapshot that is coming.
const NEW: &str = "new";
/// The name of the snapshot in that directory.
pub const SNAPSHOT: &str = "snapshot.db";
/// The name of the directory that is restored there.
pub const DATA: &str = "data";
/// The name of the directory with damaged data that were replaced.
const REPLACED: &str = "replaced";

/// Whether a whole snapshot was sent.
pub fn snapshot_is_here() -> bool {
    directory().join(SNAPSHOT).exists()
}

/// A snapshot that comes piece by piece.
#[derive(Debug)]
pub struct Upload {
    directory: PathBuf,
    file: BufWriter<tokio::fs::File>,
    length: u64,
    looked_at: u64,
}

impl Upload {
    /// Begins; what is left of an earlier one goes.
    ///
    /// # Errors
    /// Its place cannot be made, or there is no room.
    pub async fn begin() -> Result<Self, UploadError> {
        Self::begin_in(&directory()).await
    }

    async fn begin_in(directory: &Path) -> Result<Self, UploadError> {
        tokio::fs::create_dir_all(directory).await?;
        let mut options = tokio::fs::File::options();
        // It holds all secrets of the cluster.
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(directory.join(NEW)).await?;
        if let Err(error) = demand_room(directory, 0) {
            discard(directory).await;
            return Err(error);
        }
        Ok(Upload {
            directory: directory.to_owned(),
            // Clients send pieces of any size, and each write is work of a thread.
            file: BufWriter::with_capacity(LOOK as usize, file),
            length: 0,
            looked_at: 0,
        })
    }

    /// Adds the next bytes.
    ///
    /// # Errors
    /// They are too many, or there is no room for them.
    pub async fn add(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        self.length += bytes.len() as u64;
        if self.length > LARGEST {
            return Err(UploadError::TooLarge);
        }
        self.file.write_all(bytes).await?;
        if self.length - self.looked_at >= LOOK {
            self.looked_at = self.length;
            demand_room(&self.directory, self.length)?;
        }
        Ok(())
    }

    /// Keeps it for the beginning of the cluster, in place of an earlier one; one that cannot be kept is removed. Returns its size in bytes.
    ///
    /// # Errors
    /// The disk failed, or is full.
    pub async fn finish(mut self) -> Result<u64, UploadError> {
        let kept = self.keep().await;
        if kept.is_err() {
            self.discard().await;
        }
        kept
    }

    async fn keep(&mut self) -> Result<u64, UploadError> {
        self.file.flush().await?;
        demand_room(&self.directory, self.length)?;
        self.file.get_ref().sync_all().await?;
        tokio::fs::rename(self.directory.join(NEW), self.directory.join(SNAPSHOT)).await?;
        let directory = tokio::fs::File::open(&self.directory).await?;
        directory.sync_all().await?;
        Ok(self.length)
    }

    /// Removes the data that it has made.
    pub async fn discard(self) {
        discard(&self.directory).await;
    }
}

async fn discard(directory: &Path) {
    match tokio::fs::remove_file(directory.join(NEW)).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("a part of a snapshot stays until the next one comes: {error}");
        }
        _ => {}
    }
}

/// Demands room for the restored data of a snapshot of this size, part of which may be here.
///
/// # Errors
/// There is too little, or nobody can tell.
pub fn demand_room(directory: &Path, here: u64) -> Result<(), UploadError> {
    let disk = statvfs(directory).map_err(io::Error::from)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed = here.saturating_add(BESIDE);
    match free < needed {
        true => Err(UploadError::NoRoom { here, needed, free }),
        false => Ok(()),
    }
}

/// Returns the arguments with which etcdutl restores the snapshot; it sees the directory of all of it at this path.
///
/// The previous members are forgotten: this node alone makes the new cluster. Revisions go on far ahead, and those of before count as
/// compacted. So nobody who has seen what the cluster wrote after the snapshot takes a new object for an old one: watches end, and begin anew with
/// all objects.
pub fn restore_arguments(seen: &str, node: &str, with_digest: bool) -> Vec<String> {
    let mut arguments = ["snapshot", "restore"].map(str::to_owned).to_vec();
    arguments.push(format!("{seen}/{SNAPSHOT}"));
    arguments.push(format!("--data-dir={seen}/{DATA}"));
    arguments.push(format!("--name={node}"));
    arguments.push(format!("--initial-cluster={node}={PEERS}"));
    arguments.push(format!("--initial-advertise-peer-urls={PEERS}"));
    arguments.push(format!("--bump-revision={REVISIONS_AHEAD}"));
    arguments.push("--mark-compacted".to_owned());
    if !with_digest {
        arguments.push("--skip-hash-check".to_owned());
    }
    arguments
}

/// Removes what an earlier try has restored.
///
/// # Errors
/// The disk failed.
pub fn clear() -> io::Result<()> {
    removal::tree(&directory().join(DATA))
}

/// Removes the snapshot that was sent.
///
/// # Errors
/// The disk failed.
pub fn forget_snapshot() -> io::Result<()> {
    removal::file(&directory().join(SNAPSHOT))
}

/// Puts the restored data in their place, from where etcd takes them. Damaged ones are kept beside, and the snapshot is removed. Blocks.
///
/// # Errors
/// The disk failed; or data are there by now that are not to be replaced.
pub fn put_in_place(replace: bool) -> io::Result<()> {
    put(&directory(), &etcd_data(), replace)
}

fn put(directory: &Path, place: &Path, replace: bool) -> io::Result<()> {
    let restored = directory.join(DATA);
    syncfs(File::open(&restored)?)?;
    let above = place.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(above)?;
    match replace {
        true => exchange(&restored, &directory.join(REPLACED), place)?,
        false => renameat_with(CWD, &restored, CWD, place, RenameFlags::NOREPLACE)?,
    }
    removal::file(&directory.join(SNAPSHOT))?;
    syncfs(File::open(above)?)?;
    Ok(())
}

/// Exchanges restored data for those in their place. The exchange is the last step, and gives the others their name at once: nothing removes
/// damaged data that a power cut has left under the name of restored ones.
fn exchange(restored: &Path, replaced: &Path, place: &Path) -> io::Result<()> {
    removal::tree(replaced)?;
    fs::rename(restored, replaced)?;
    let exchanged = renameat_with(CWD, replaced, CWD, place, RenameFlags::EXCHANGE);
    if exchanged.is_err() {
        // Nobody takes them for damaged ones.
        fs::rename(replaced, restored)?;
    }
    Ok(exchanged?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::folder_for_tests::names;
    use super::*;

    struct Tree {
        _root: tempfile::TempDir,
        recovery: PathBuf,
        etcd: PathBuf,
    }

    /// A snapshot that was restored, and data of etcd if these are given.
    fn tree(data: Option<&str>) -> Tree {
        let root = tempfile::tempdir().unwrap();
        let (recovery, etcd) = (root.path().join("recovery"), root.path().join("lib/etcd"));
        fs::create_dir_all(recovery.join(DATA)).unwrap();
        fs::write(recovery.join(DATA).join("db"), "restored").unwrap();
        fs::write(recovery.join(SNAPSHOT), "snapshot").unwrap();
        if let Some(data) = data {
            fs::create_dir_all(&etcd).unwrap();
            fs::write(etcd.join("db"), data).unwrap();
        }
        Tree {
            _root: root,
            recovery,
            etcd,
        }
    }

    #[test]
    fn the_restored_cluster_is_this_node_alone() {
        let arguments = restore_arguments("/recovery", "cp-1", true);
        let expected = [
            "snapshot",
            "restore",
            "/recovery/snapshot.db",
            "--data-dir=/recovery/data",
            "--name=cp-1",
            "--initial-cluster=cp-1=https://127.0.0.1:2380",
            "--initial-advertise-peer-urls=https://127.0.0.1:2380",
            "--bump-revision=1000000000",
            "--mark-compacted",
        ];
        assert_eq!(arguments, expected);
        let unchecked = restore_arguments("/recovery", "cp-1", false);
        assert_eq!(unchecked.last().unwrap(), "--skip-hash-check");
    }

    #[test]
    fn restored_data_become_etcds() {
        let tree = tree(None);
        put(&tree.recovery, &tree.etcd, false).unwrap();
        assert_eq!(fs::read(tree.etcd.join("db")).unwrap(), b"restored");
        assert_eq!(names(&tree.recovery), [""; 0]);
    }

    #[test]
    fn data_that_came_meanwhile_stay() {
        // An empty directory is a cluster that has begun as well.
        let tree = tree(None);
        fs::create_dir_all(&tree.etcd).unwrap();
        let refused = put(&tree.recovery, &tree.etcd, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(&tree.etcd), [""; 0]);
        assert_eq!(names(&tree.recovery), [DATA, SNAPSHOT]);
    }

    #[test]
    fn damaged_data_are_kept_beside() {
        let tree = tree(Some("damaged"));
        for name in [REPLACED, "replaced/old"] {
            fs::create_dir(tree.recovery.join(name)).unwrap();
        }
        put(&tree.recovery, &tree.etcd, true).unwrap();
        assert_eq!(fs::read(tree.etcd.join("db")).unwrap(), b"restored");
        let kept = tree.recovery.join(REPLACED);
        assert_eq!(fs::read(kept.join("db")).unwrap(), b"damaged");
        assert_eq!(names(&kept), ["db"]);
        assert_eq!(names(&tree.recovery), [REPLACED]);
    }

    #[test]
    fn damaged_data_stay_in_their_place_until_they_have_the_name_by_which_they_are_kept() {
        // Whatever fails before the exchange, and nothing comes after it.
        let tree = tree(Some("damaged"));
        fs::write(tree.recovery.join(REPLACED), "no directory").unwrap();
        put(&tree.recovery, &tree.etcd, true).unwrap_err();
        assert_eq!(fs::read(tree.etcd.join("db")).unwrap(), b"damaged");
        let restored = tree.recovery.join(DATA).join("db");
        assert_eq!(fs::read(restored).unwrap(), b"restored");
    }

    #[test]
    fn restored_data_keep_their_name_if_there_are_none_to_exchange_them_for() {
        let tree = tree(None);
        put(&tree.recovery, &tree.etcd, true).unwrap_err();
        assert_eq!(names(&tree.recovery), [DATA, SNAPSHOT]);
    }

    #[tokio::test]
    async fn a_snapshot_is_there_when_all_of_it_has_come() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("recovery");
        let mut upload = Upload::begin_in(&directory).await.unwrap();
        upload.add(b"snap").await.unwrap();
        assert_eq!(names(&directory), ["new"]);
        upload.add(b"shot").await.unwrap();
        assert_eq!(upload.finish().await.unwrap(), 8);
        assert_eq!(names(&directory), [SNAPSHOT]);
        // Another one that does not come to its end changes nothing.
        let mut upload = Upload::begin_in(&directory).await.unwrap();
        upload.add(b"other").await.unwrap();
        upload.discard().await;
        assert_eq!(fs::read(directory.join(SNAPSHOT)).unwrap(), b"snapshot");
        assert_eq!(names(&directory), [SNAPSHOT]);
    }

    #[tokio::test]
    async fn a_snapshot_that_cannot_be_kept_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let mut upload = Upload::begin_in(root.path()).await.unwrap();
        upload.add(b"snapshot").await.unwrap();
        upload.length = 1 << 60;
        let refused = upload.finish().await.unwrap_err();
        assert!(matches!(refused, UploadError::NoRoom { .. }), "{refused}");
        assert_eq!(names(root.path()), [""; 0]);
    }

    #[tokio::test]
    async fn what_is_too_large_is_refused_with_numbers() {
        let root = tempfile::tempdir().unwrap();
        let mut upload = Upload::begin_in(root.path()).await.unwrap();
        upload.length = LARGEST;
        let refused = upload.add(b"1").await.unwrap_err();
        assert!(matches!(refused, UploadError::TooLarge), "{refused}");
        let refused = demand_room(root.path(), 1 << 60).unwrap_err().to_string();
        for words in ["no room", "of it are here", "are free on EPHEMERAL"] {
            assert!(refused.contains(words), "{refused}");
        }
    }
}
