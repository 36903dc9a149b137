//! The stream of a layer: from the blob through its digest, decompression and limits to the archive.
//!
//! Nothing is stored: each reader passes bytes on to the next one and keeps only counts and hashes. All of it runs on the thread that
//! decodes; the pipe `ahead` leads to the thread that unpacks.

use std::io::{self, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::decoder::{Compression, Decoder};
use super::{Limits, TakeRoom, UnpackError};
use instar_values::digest::{Digest, Hasher};

/// Buffer size of decompressors, in bytes.
const BUFFER: usize = 64 * 1024;
/// A blob that is being received: counted and hashed, never longer than announced.
pub(super) struct Blob<R> {
    inner: R,
    hasher: Hasher,
    size: u64,
    read: Arc<AtomicU64>,
    failure: Option<UnpackError>,
}

impl<R: Read> Blob<R> {
    pub(super) fn new(inner: R, size: u64) -> Self {
        Blob {
            inner,
            hasher: Hasher::default(),
            size,
            read: Arc::default(),
            failure: None,
        }
    }

    /// The counter of received bytes.
    pub(super) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    /// Reads to the end and checks size and digest: the verdict about the blob itself, regardless of its content.
    pub(super) fn verify(mut self, expected: Digest) -> Result<(), UnpackError> {
        let mut buffer = [0; 8 * 1024];
        while self.failure.is_none() {
            match self.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let read = self.read.load(Ordering::Relaxed);
        if read != self.size {
            return Err(UnpackError::BlobTruncated {
                read,
                expected: self.size,
            });
        }
        let actual = self.hasher.finish();
        if actual == expected {
            Ok(())
        } else {
            Err(UnpackError::BlobDigest { expected, actual })
        }
    }
}

impl<R: Read> Read for Blob<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.inner.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                // The decompressor gets a copy; `verify` returns the original.
                let copy = io::Error::new(error.kind(), error.to_string());
                self.failure = Some(UnpackError::Blob(error));
                return Err(copy);
            }
        };
        self.hasher.update(&buffer[..count]);
        let read = self.read.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        if read > self.size {
            self.failure = Some(UnpackError::BlobTooLong {
                expected: self.size,
            });
            return Err(io::Error::other("the blob is longer than announced"));
        }
        Ok(count)
    }
}

/// A blob from its beginning: the bytes that were read to detect the compression, and the rest.
type FromStart<'a, R> = BufReader<Chain<Cursor<Vec<u8>>, &'a mut Blob<R>>>;

/// The unpacked bytes: counted, hashed and limited.
pub(super) struct Unpacked<'a, R: Read> {
    decoder: Decoder<FromStart<'a, R>>,
    /// `None` if the layer is not packed: the blob's own digest is that of its content, and hashing is the most expensive part of a pull.
    hasher: Option<Hasher>,
    compressed: Arc<AtomicU64>,
    count: u64,
    /// Bytes of the layers before, which count towards the limit of the image.
    before: u64,
    limits: Limits,
    room: Option<TakeRoom>,
    failure: Option<UnpackError>,
}

impl<'a, R: Read> Unpacked<'a, R> {
    pub(super) fn new(
        blob: &'a mut Blob<R>,
        limits: Limits,
        room: Option<TakeRoom>,
        before: u64,
    ) -> io::Result<Self> {
        let compressed = blob.counter();
        let mut first = Vec::new();
        blob.by_ref().take(4).read_to_end(&mut first)?;
        let compression = Compression::of(&first);
        let source = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(blob));
        let hasher = (compression != Compression::None).then(Hasher::default);
        let decoder = Decoder::new(compression, source)?;
        Ok(Unpacked {
            decoder,
            hasher,
            compressed,
            count: 0,
            before,
            limits,
            room,
            failure: None,
        })
    }

    /// The bytes of this layer and the ones before, its digest if it differs from the blob's, and the limit that ended it, if one did.
    pub(super) fn finish(self) -> (u64, Option<Digest>, Option<UnpackError>) {
        let digest = self.hasher.map(Hasher::finish);
        (self.before + self.count, digest, self.failure)
    }

    fn exceeded(&self, more: u64) -> Option<UnpackError> {
        let has_room = self.room.as_ref().is_none_or(|take| take(more));
        if !has_room || self.before + self.count > self.limits.unpacked_bytes {
            return Some(UnpackError::TooLarge {
                limit: self.limits.unpacked_bytes,
            });
        }
        let allowed = self
            .compressed
            .load(Ordering::Relaxed)
            .saturating_mul(self.limits.ratio);
        (self.count > self.limits.ratio_from && self.count > allowed).then_some(
            UnpackError::TooDense {
                limit: self.limits.ratio,
            },
        )
    }
}

impl<R: Read> Read for Unpacked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        self.count += count as u64;
        if let Some(failure) = self.exceeded(count as u64) {
            self.failure = Some(failure);
            return Err(io::Error::other("a limit is exceeded"));
        }
        Ok(count)
    }
}
