//! A blob that is being received.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use super::growing::{GrowingBlob, Growth};
use super::partial::PartialBlob;
use super::stored::StoredBlob;
use super::{Blobs, Right};
use crate::registry::{Pace, Waiting};
use crate::store_error::{StoreError, failed};
use instar_values::Digest;
use instar_values::digest::Hasher;

/// Time after which what has arrived is synced: a power cut takes no more than this from a slow transfer. A quick one ends before.
const SYNC: Duration = Duration::from_secs(5);

/// The beginning of a reception.
#[derive(Debug)]
pub enum Receiving {
    /// Nothing is to be received: the blob is here.
    Stored(StoredBlob),
    /// The blob, or the rest of it, is to be received.
    Missing(IncomingBlob),
}

/// A blob that is being received. There is one at a time for each digest. Dropping it keeps what has arrived: the next one goes on there.
#[derive(Debug)]
pub struct IncomingBlob {
    writer: Writer,
}

/// The turn to write a blob. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct WritingTurn {
    // Released before the right is let go, which others then still find.
    _guard: OwnedMutexGuard<()>,
    right: Arc<Right>,
}

impl Right {
    /// Waits for the turn, which another caller may have, while that one goes at least as fast as this one may.
    pub(super) async fn turn(self: Arc<Self>, pace: Option<Arc<Pace>>) -> WritingTurn {
        let guard = {
            let _waiter = self.waiting.join(pace);
            self.lock.clone().lock_owned().await
        };
        WritingTurn {
            _guard: guard,
            right: self,
        }
    }

    /// The turn, if nobody has it.
    pub(super) fn try_turn(self: Arc<Self>) -> Option<WritingTurn> {
        Some(WritingTurn {
            _guard: self.lock.clone().try_lock_owned().ok()?,
            right: self,
        })
    }
}

/// Writes a blob into its partial file, and tells its readers.
#[derive(Debug)]
pub(crate) struct Writer {
    blobs: Blobs,
    blob: PartialBlob,
    size: u64,
    length: u64,
    synced_at: Instant,
    growth: Arc<Growth>,
    turn: WritingTurn,
}

impl IncomingBlob {
    pub(super) fn new(
        blobs: Blobs,
        blob: PartialBlob,
        size: u64,
        length: u64,
        turn: WritingTurn,
    ) -> Self {
        IncomingBlob {
            writer: Writer {
                blobs,
                blob,
                size,
                length,
                synced_at: Instant::now(),
                growth: Arc::new(Growth::from(length)),
                turn,
            },
        }
    }

    /// Bytes that are here already: the position of the next write.
    pub fn length(&self) -> u64 {
        self.writer.length
    }

    /// Adds the next bytes.
    ///
    /// # Errors
    /// The file system failed, or the blob gets longer than announced.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.writer.write(bytes)
    }

    /// Goes back to the beginning. For senders that cannot continue.
    ///
    /// # Errors
    /// The file system failed.
    pub fn start_again(&mut self) -> Result<(), StoreError> {
        let Writer { blobs, blob, .. } = &self.writer;
        let path = blobs.partial_path(blob.digest());
        blob.file().set_len(0).map_err(failed("emptying", &path))?;
        self.writer.length = 0;
        Ok(())
    }

    /// Makes it a blob of the store. Blocks until it is on the disk.
    ///
    /// # Errors
    /// The blob is shorter than announced: it stays partial. Its content has another digest: it is removed. The file system failed.
    pub fn commit(self) -> Result<StoredBlob, StoreError> {
        let Writer {
            blobs,
            blob,
            size,
            length,
            ..
        } = &self.writer;
        let digest = blob.digest();
        if length < size {
            return Err(StoreError::BlobTruncated {
                digest,
                length: *length,
                size: *size,
            });
        }
        let path = blobs.partial_path(digest);
        let actual = digest_of(&blob.file()).map_err(failed("reading", &path))?;
        if actual != digest {
            blobs.discard(digest, "another content was received")?;
            return Err(StoreError::BlobDigest { digest, actual });
        }
        blob.file().sync_all().map_err(failed("syncing", &path))?;
        blobs.publish(std::slice::from_ref(blob))?;
        blobs.open(digest)?.ok_or(StoreError::NoBlob(digest))
    }

    /// Leaves the comparing to a reader: the way of a layer, which is compared while it is unpacked.
    pub(crate) fn followed(self) -> (Writer, GrowingBlob) {
        let Writer { blob, growth, .. } = &self.writer;
        let reader = GrowingBlob::new(blob.clone(), growth.clone());
        (self.writer, reader)
    }

    /// The partial file of a small blob that was written whole, from bytes that have its digest.
    pub(crate) fn into_partial(self) -> PartialBlob {
        self.writer.blob.clone()
    }
}

impl Writer {
    /// Bytes that are here already.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The pulls that wait for the blob.
    pub(crate) fn waiting(&self) -> Arc<Waiting> {
        self.turn.right.waiting.clone()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let length = self.length + bytes.len() as u64;
        let digest = self.blob.digest();
        if length > self.size {
            let size = self.size;
            return Err(StoreError::BlobTooLong { digest, size });
        }
        let path = self.blobs.partial_path(digest);
        let written = self.blob.file().write_all_at(bytes, self.length);
        written.map_err(failed("writing", &path))?;
        if self.synced_at.elapsed() >= SYNC {
            let synced = self.blob.file().sync_data();
            synced.map_err(failed("syncing", &path))?;
            self.synced_at = Instant::now();
        }
        self.length = length;
        self.growth.grow(length);
        Ok(())
    }

    /// Ends the writing, and tells the readers its error.
    pub(crate) fn fail(self, error: io::Error) {
        self.growth.end(Some(error));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.growth.end(None);
    }
}

fn digest_of(file: &File) -> io::Result<Digest> {
    let (mut hasher, mut buffer, mut at) = (Hasher::default(), vec![0; 64 << 10], 0);
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
