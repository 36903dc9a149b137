//! A blob of the store, opened for reading.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Take};
use std::ops::Range;

use instar_values::Digest;
use instar_values::digest::Hasher;

use super::Blobs;

/// A blob of the store. Only the store makes one: its content had the right digest when it got its name. Disks decay, so whoever uses the
/// content compares it again: [`StoredBlob::checked`].
#[derive(Debug)]
pub struct StoredBlob {
    digest: Digest,
    size: u64,
    file: File,
    /// The store's blobs: a damaged one goes from them.
    blobs: Blobs,
}

impl StoredBlob {
    pub(super) fn new(digest: Digest, size: u64, file: File, blobs: Blobs) -> Self {
        StoredBlob {
            digest,
            size,
            file,
            blobs,
        }
    }

    /// Its digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its size, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A reader that fails at the end of a blob whose content has another digest by now. Whoever passes the bytes on has to pass on this
    /// failure too. The damaged blob is removed from the store: the next pull that needs it fetches it.
    pub fn checked(self) -> CheckedBlob {
        CheckedBlob {
            blob: self,
            hasher: Some(Hasher::default()),
        }
    }

    /// A reader of these bytes alone, which are not compared with the digest: for whoever has read the whole blob by
    /// [`checked`](Self::checked) shortly before.
    ///
    /// # Errors
    /// The file cannot be read from there on.
    pub fn part(mut self, part: Range<u64>) -> io::Result<Take<File>> {
        self.file.seek(SeekFrom::Start(part.start))?;
        Ok(self.file.take(part.end.saturating_sub(part.start)))
    }

    /// Its content, which is not compared with its digest here.
    pub(super) fn bytes(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.file).take(self.size).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A reader of its content for a caller that compares it with the digest.
    pub(crate) fn unchecked(self) -> File {
        self.file
    }
}

/// A blob that is compared with its digest while it is read.
pub struct CheckedBlob {
    blob: StoredBlob,
    /// `None` once the end was reached.
    hasher: Option<Hasher>,
}

impl CheckedBlob {
    /// The size of the whole blob, in bytes.
    pub fn size(&self) -> u64 {
        self.blob.size
    }

    fn read_and_compare(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.blob.file.read(buffer)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        if count > 0 || buffer.is_empty() {
            return Ok(count);
        }
        let digest = self.blob.digest;
        match self.hasher.take().map(Hasher::finish) {
            Some(actual) if actual != digest => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "the blob {digest} is damaged on the disk: its content has the digest {actual}"
                ),
            )),
            _ => Ok(0),
        }
    }
}

impl Read for CheckedBlob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_and_compare(buffer);
        // A disk that cannot read it back has damaged it as well.
        if let Err(error) = &read
            && error.kind() != io::ErrorKind::Interrupted
        {
            let StoredBlob {
                digest,
                file,
                blobs,
                ..
            } = &self.blob;
            blobs.remove_damaged(*digest, file, error);
        }
        read
    }
}
