//! The blobs of images exactly as registries serve them: indexes, manifests, configs and layers, each under its digest.
//!
//! ```text
//! <store>/blobs/sha256/<64 hex digits>    whole blobs
//! <store>/blobs/partial/<64 hex digits>   a blob that is being received, or whose transfer was cut off
//! ```
//!
//! A blob gets its name after its content was compared with its digest and is on the disk: after a power cut it is there whole, or it is
//! a partial blob, or it is not there. A partial blob is continued by the next transfer; nothing is believed about its content, which is
//! compared with the digest when the blob is complete.
//!
//! The decision: blobs are kept beside the unpacked images, and cost their size again. Without them a damaged image needs its registry, and a
//! machine cannot give an image to another one.

mod growing;
mod incoming;
mod partial;
mod stored;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::registry::{Pace, Waiting};
use crate::store_error::{StoreError, failed};
pub(crate) use growing::GrowingBlob;
pub(crate) use incoming::Writer;
use incoming::WritingTurn;
pub use incoming::{IncomingBlob, Receiving};
use instar_base::lock::Lock as _;
use instar_values::Digest;
pub(crate) use partial::PartialBlob;
pub use stored::{CheckedBlob, StoredBlob};

/// Only root reads blobs: images may hold what their owner keeps to himself.
const MODE: u32 = 0o600;

/// The blobs of a store; clones share them. Directories are made when first needed.
#[derive(Debug, Clone)]
pub struct Blobs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    /// The right to write a blob, by its digest.
    writers: Mutex<HashMap<Digest, Arc<Right>>>,
    /// Number of [`HeldBlobs`] that hold each blob.
    held: Mutex<HashMap<Digest, usize>>,
    /// Locked while files get a name or lose it, so that a name does not change between a look and the change.
    names: Mutex<()>,
}

/// The right to write a blob, and those who wait for it.
#[derive(Debug, Default)]
struct Right {
    lock: Arc<tokio::sync::Mutex<()>>,
    waiting: Arc<Waiting>,
}

/// A blob's file, as a listing shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobFile {
    /// Its digest; of a partial blob, the digest that it is to have.
    pub digest: Digest,
    /// Bytes that are there.
    pub bytes: u64,
    /// The time of the last write.
    pub written_at: SystemTime,
}

impl Blobs {
    /// The blobs below a store's directory.
    pub(crate) fn new(store: &Path) -> Self {
        Blobs {
            shared: Arc::new(Shared {
                directory: store.join("blobs"),
                writers: Mutex::default(),
                held: Mutex::default(),
                names: Mutex::default(),
            }),
        }
    }

    fn whole(&self) -> PathBuf {
        self.shared.directory.join("sha256")
    }

    fn partial(&self) -> PathBuf {
        self.shared.directory.join("partial")
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.whole().join(digest.hex())
    }

    fn partial_path(&self, digest: Digest) -> PathBuf {
        self.partial().join(digest.hex())
    }

    /// Opens a blob; `None` if it is not here.
    pub fn open(&self, digest: Digest) -> Result<Option<StoredBlob>, StoreError> {
        let path = self.path(digest);
        let opened = File::open(&path).and_then(|file| {
            let size = file.metadata()?.len();
            Ok(StoredBlob::new(digest, size, file, self.clone()))
        });
        match opened {
            Ok(blob) => Ok(Some(blob)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("opening", &path)(error)),
        }
    }

    /// Reads a small blob, and compares it with its digest. `None` if it is not here or larger than `most` bytes; a damaged one is removed
    /// and counts as not here.
    pub fn document(&self, digest: Digest, most: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(blob) = self.open(digest)?.filter(|blob| blob.size() <= most) else {
            return Ok(None);
        };
        let path = self.path(digest);
        let bytes = blob.bytes().map_err(failed("reading", &path))?;
        if Digest::of(&bytes) == digest {
            return Ok(Some(bytes));
        }
        self.discard(digest, "its content has another digest")?;
        Ok(None)
    }

    /// Begins to receive a blob, or returns the one that is here. Waits while another caller receives the same blob.
    ///
    /// # Errors
    /// The file system failed.
    pub async fn receive(&self, digest: Digest, size: u64) -> Result<Receiving, StoreError> {
        self.receive_at(digest, size, None).await
    }

    /// The same with a limit on the caller's bandwidth: another caller that fetches the same blob more slowly goes as fast as this one
    /// meanwhile.
    pub(crate) async fn receive_at(
        &self,
        digest: Digest,
        size: u64,
        pace: Option<Arc<Pace>>,
    ) -> Result<Receiving, StoreError> {
        let turn = self.right(digest).turn(pace).await;
        self.begin(digest, size, turn)
    }

    /// The same without waiting; `None` while another caller receives the blob.
    ///
    /// # Errors
    /// The file system failed.
    pub fn try_receive(&self, digest: Digest, size: u64) -> Result<Option<Receiving>, StoreError> {
        let turn = self.right(digest).try_turn();
        turn.map(|turn| self.begin(digest, size, turn)).transpose()
    }

    fn right(&self, digest: Digest) -> Arc<Right> {
        let mut writers = self.shared.writers.locked();
        // Those who wait have the right, and so has the one who writes.
        writers.retain(|_, right| Arc::strong_count(right) > 1);
        writers.entry(digest).or_default().clone()
    }

    fn begin(&self, digest: Digest, size: u64, turn: WritingTurn) -> Result<Receiving, StoreError> {
        if let Some(blob) = self.open(digest)? {
            return Ok(Receiving::Stored(blob));
        }
        for directory in [self.whole(), self.partial()] {
            fs::create_dir_all(&directory).map_err(failed("creating", &directory))?;
        }
        let path = self.partial_path(digest);
        let _names = self.shared.names.locked();
        let mut file = open_partial(&path).map_err(failed("opening", &path))?;
        let mut length = file.metadata().map_err(failed("reading", &path))?.len();
        if length > size {
            // A reader of the old file keeps it.
            fs::remove_file(&path).map_err(failed("removing", &path))?;
            file = open_partial(&path).map_err(failed("opening", &path))?;
            length = 0;
        }
        let partial = PartialBlob::new(digest, file);
        let incoming = IncomingBlob::new(self.clone(), partial, size, length, turn);
        Ok(Receiving::Missing(incoming))
    }

    /// Gives complete blobs their names. Their content was compared with their digests, and is on the disk.
    fn publish(&self, blobs: &[PartialBlob]) -> Result<(), StoreError> {
        for blob in blobs {
            let _names = self.shared.names.locked();
            let path = self.partial_path(blob.digest());
            if blob.has_the_name(&path) {
                fs::rename(&path, self.path(blob.digest())).map_err(failed("renaming", &path))?;
            }
        }
        self.sync_names()
    }

    /// The same for blobs that are complete and compared, after the caller has synced the file system.
    pub(crate) fn keep(&self, blobs: &[PartialBlob]) -> Result<(), StoreError> {
        match blobs {
            [] => Ok(()),
            _ => self.publish(blobs),
        }
    }

    fn sync_names(&self) -> Result<(), StoreError> {
        for directory in [self.whole(), self.partial()] {
            File::open(&directory)
                .and_then(|directory| directory.sync_all())
                .map_err(failed("syncing", &directory))?;
        }
        Ok(())
    }

    /// Removes a partial blob whose content is not that of its digest, unless another file has taken its place.
    pub(crate) fn discard_partial(&self, blob: &PartialBlob) -> Result<(), StoreError> {
        let _names = self.shared.names.locked();
        let path = self.partial_path(blob.digest());
        if !blob.has_the_name(&path) {
            return Ok(());
        }
        tracing::warn!(
            "the partial blob {} is removed: it is not right",
            blob.digest()
        );
        fs::remove_file(&path).map_err(failed("removing", &path))
    }

    /// Removes a blob, whole or partial, whose content is not that of its digest.
    pub(crate) fn discard(&self, digest: Digest, why: &str) -> Result<(), StoreError> {
        tracing::warn!("the blob {digest} is removed: {why}");
        self.remove(digest)
    }

    /// Reads a blob, and removes it if the disk has damaged it; returns whether it is gone. Blocks for as long as the disk takes.
    pub(crate) fn remove_if_damaged(&self, digest: Digest) -> Result<bool, StoreError> {
        let is_whole = match self.open(digest)? {
            Some(blob) => io::copy(&mut blob.checked(), &mut io::sink()).is_ok(),
            None => false,
        };
        if !is_whole {
            // The reader has removed it, unless that failed: it would be taken for a whole one.
            self.remove(digest)?;
        }
        Ok(!is_whole)
    }

    /// Removes a blob that is damaged, unless another file has taken its place. Its reader fails anyway, so a removal that fails is only logged.
    fn remove_damaged(&self, digest: Digest, file: &File, how: &io::Error) {
        let _names = self.shared.names.locked();
        let path = self.path(digest);
        if !is_name_of(&path, file) {
            return;
        }
        match fs::remove_file(&path) {
            Ok(()) => tracing::error!("the blob {digest} is removed: {how}"),
            Err(error) => tracing::error!("the blob {digest} stays ({error}), although: {how}"),
        }
    }

    /// Removes a blob, whole or partial; readers that have opened it keep it. A missing one is no error.
    pub(crate) fn remove(&self, digest: Digest) -> Result<(), StoreError> {
        let _names = self.shared.names.locked();
        for path in [self.path(digest), self.partial_path(digest)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("removing", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a partial blob unless it is held or being received.
    pub(crate) fn remove_partial(&self, digest: Digest) -> Result<(), StoreError> {
        let held = self.shared.held.locked();
        if held.contains_key(&digest) {
            return Ok(());
        }
        let Some(_turn) = self.right(digest).try_turn() else {
            return Ok(());
        };
        let _names = self.shared.names.locked();
        let path = self.partial_path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("removing", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Holds blobs: none of them is collected until the value is dropped. For whoever makes an image from blobs, or receives them one by one
    /// for an image that comes later. To be called before one of them is opened.
    pub fn hold(&self, digests: impl IntoIterator<Item = Digest>) -> HeldBlobs {
        let digests: Vec<_> = digests.into_iter().collect();
        let mut held = self.shared.held.locked();
        for digest in &digests {
            *held.entry(*digest).or_default() += 1;
        }
        HeldBlobs {
            shared: self.shared.clone(),
            digests,
        }
    }

    /// Removes a whole blob unless it is held; returns whether it is gone.
    pub(crate) fn remove_unless_held(&self, digest: Digest) -> Result<bool, StoreError> {
        let held = self.shared.held.locked();
        if held.contains_key(&digest) {
            return Ok(false);
        }
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("removing", &path)(error))
            }
            _ => Ok(true),
        }
    }

    /// Lists the whole blobs.
    pub fn list(&self) -> Result<Vec<BlobFile>, StoreError> {
        list(&self.whole())
    }

    /// Lists the partial blobs.
    pub fn list_partial(&self) -> Result<Vec<BlobFile>, StoreError> {
        list(&self.partial())
    }
}

/// Blobs that are not collected while this value exists.
#[derive(Debug)]
pub struct HeldBlobs {
    shared: Arc<Shared>,
    digests: Vec<Digest>,
}

impl Drop for HeldBlobs {
    fn drop(&mut self) {
        let mut held = self.shared.held.locked();
        for digest in &self.digests {
            if let Some(count) = held.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    held.remove(digest);
                }
            }
        }
    }
}

fn open_partial(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(path)
}

/// Lists the files of a directory whose names are digests; a missing directory is empty.
fn list(directory: &Path) -> Result<Vec<BlobFile>, StoreError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("listing", directory)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("listing", directory))?;
        let name = entry.file_name();
        let digest = name.to_str().and_then(|name| Digest::from_hex(name).ok());
        // A file may be renamed or removed meanwhile.
        let (Some(digest), Ok(metadata)) = (digest, entry.metadata()) else {
            continue;
        };
        found.push(BlobFile {
            digest,
            bytes: metadata.len(),
            written_at: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        });
    }
    found.sort_by_key(|file| file.digest);
    Ok(found)
}

/// Whether a path is the name of this file.
fn is_name_of(path: &Path, file: &File) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (fs::symlink_metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => identity(named) == identity(open),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
