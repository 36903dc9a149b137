//! The file of a bundle that is being uploaded. There is one at a time; it outlasts a broken connection, a restart of machined and, on a
//! disk, a reboot.
//!
//! ```text
//! <directory>/<64 digits of the bundle's digest>-<size>      the bytes so far; nothing is believed about them until all were verified
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::base::byte_size::human_short;
use crate::base::lock::Lock as _;
use crate::values::Digest;

/// Time without a new byte after which another upload may take the place.
const SILENCE: Duration = Duration::from_secs(60);
/// Only root reads it.
const MODE: u32 = 0o600;

/// The place of uploads.
#[derive(Debug)]
pub struct Uploads {
    directory: PathBuf,
    slot: Mutex<Option<Upload>>,
}

#[derive(Debug)]
struct Upload {
    digest: Digest,
    size: u64,
    length: u64,
    file: File,
    path: PathBuf,
    /// The last time that its caller has sent something. None: nobody waits for it.
    last_byte: Option<Instant>,
    /// Its images are being imported: nothing is written any more.
    taken: bool,
}

/// Why bytes of a bundle are not taken.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// Another upload goes on.
    #[error(
        "another bundle ({digest}) is being uploaded, {} of {} are here; try again when it is done, or a minute after its last byte",
        human_short(*bytes),
        human_short(*total)
    )]
    Busy {
        /// The other bundle.
        digest: Digest,
        /// Bytes that are here.
        bytes: u64,
        /// Size of its file.
        total: u64,
    },
    /// The bundle is being imported.
    #[error("the bundle {0} is being imported already; `get bundles` shows how far it is")]
    Taken(Digest),
    /// No upload of this bundle has begun, or another one took its place.
    #[error("no upload of the bundle {0} is open; begin it again")]
    NotBegun(Digest),
    /// The caller continues at another place than the node.
    #[error("the next byte is number {expected}, not {given}; ask for the offset again")]
    Offset {
        /// Bytes that are here.
        expected: u64,
        /// The offset of the call.
        given: u64,
    },
    /// More bytes than announced.
    #[error("the bundle would get longer than the {0} bytes that were announced")]
    TooLong(u64),
    /// Not all bytes are here.
    #[error("the bundle is incomplete: {length} of {size} bytes are here")]
    Incomplete {
        /// Bytes that are here.
        length: u64,
        /// Size of the file.
        size: u64,
    },
    /// There is no room.
    #[error(
        "there is no room for the bundle: it needs {} (its rest, and its images twice), {} are free on /var; remove images or files",
        human_short(*needed),
        human_short(*free)
    )]
    NoRoom {
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The file system failed.
    #[error("{step} {path:?} failed")]
    Io {
        /// The operation.
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Uploads {
    /// The place of uploads in this directory, which is made when first needed.
    pub fn new(directory: PathBuf) -> Self {
        Uploads {
            directory,
            slot: Mutex::default(),
        }
    }

    fn failed(&self, step: &'static str) -> impl FnOnce(io::Error) -> UploadError + use<> {
        let path = self.directory.clone();
        move |source| UploadError::Io { step, path, source }
    }

    /// Begins an upload or goes on with it; returns the number of bytes that are here.
    ///
    /// # Errors
    /// Another upload goes on, there is no room, or the file system fails.
    pub fn begin(&self, digest: Digest, size: u64) -> Result<u64, UploadError> {
        let mut slot = self.slot.locked();
        if let Some(upload) = &mut *slot {
            let is_same = (upload.digest, upload.size) == (digest, size);
            if upload.taken {
                return Err(UploadError::Taken(upload.digest));
            }
            if is_same {
                upload.last_byte = Some(Instant::now());
                return Ok(upload.length);
            }
            if upload.last_byte.is_some_and(|at| at.elapsed() < SILENCE) {
                return Err(UploadError::Busy {
                    digest: upload.digest,
                    bytes: upload.length,
                    total: upload.size,
                });
            }
        }
        *slot = None;
        let upload = self.open(digest, size)?;
        let length = upload.length;
        *slot = Some(upload);
        Ok(length)
    }

    /// Opens the file of an upload, and removes those of others.
    fn open(&self, digest: Digest, size: u64) -> Result<Upload, UploadError> {
        let name = format!("{}-{size}", digest.hex());
        let directory = &self.directory;
        fs::create_dir_all(directory).map_err(self.failed("creating"))?;
        for entry in fs::read_dir(directory).map_err(self.failed("listing"))? {
            let entry = entry.map_err(self.failed("listing"))?;
            if entry.file_name() != name.as_str() {
                fs::remove_file(entry.path()).map_err(self.failed("clearing"))?;
            }
        }
        let path = directory.join(name);
        let mut options = File::options();
        options.read(true).write(true).create(true).mode(MODE);
        let file = options
            .open(&path)
            .map_err(self.failed("creating a file in"))?;
        let length = file.metadata().map_err(self.failed("reading"))?.len();
        let length = length.min(size);
        let needed = (size - length).saturating_add(size.saturating_mul(2));
        let room = rustix::fs::statvfs(directory);
        let room = room.map_err(|error| self.failed("looking at the room of")(error.into()))?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if needed > free {
            // What is here of it may be what is missing.
            fs::remove_file(&path).map_err(self.failed("clearing"))?;
            return Err(UploadError::NoRoom { needed, free });
        }
        Ok(Upload {
            digest,
            size,
            length,
            file,
            path,
            last_byte: Some(Instant::now()),
            taken: false,
        })
    }

    /// Adds bytes at an offset, which has to be the end; returns the new number of bytes.
    ///
    /// # Errors
    /// The upload is not open, the offset is another one, or the file system fails.
    pub fn write(&self, digest: Digest, offset: u64, bytes: &[u8]) -> Result<u64, UploadError> {
        let mut slot = self.slot.locked();
        let upload = open_upload(&mut slot, digest)?;
        if offset != upload.length {
            return Err(UploadError::Offset {
                expected: upload.length,
                given: offset,
            });
        }
        let length = offset + bytes.len() as u64;
        if length > upload.size {
            return Err(UploadError::TooLong(upload.size));
        }
        let written = upload.file.write_all_at(bytes, offset);
        written.map_err(self.failed("writing to a file in"))?;
        upload.length = length;
        upload.last_byte = Some(Instant::now());
        Ok(length)
    }

    /// The bundle that is being uploaded, the bytes that are here, and the size of the file.
    pub fn progress(&self) -> Option<(Digest, u64, u64)> {
        let slot = self.slot.locked();
        let upload = slot.as_ref().filter(|upload| !upload.taken)?;
        Some((upload.digest, upload.length, upload.size))
    }

    /// Takes the whole file for importing. Until [`end`](Self::end), no other upload begins.
    ///
    /// # Errors
    /// The upload is not open, or not all of it is here.
    pub fn take(&self, digest: Digest) -> Result<File, UploadError> {
        let mut slot = self.slot.locked();
        let upload = open_upload(&mut slot, digest)?;
        let (length, size) = (upload.length, upload.size);
        if length < size {
            return Err(UploadError::Incomplete { length, size });
        }
        let file = upload.file.try_clone();
        let file = file.map_err(self.failed("opening a file in"))?;
        upload.taken = true;
        Ok(file)
    }

    /// Leaves the file for another try, which is to be expected in a moment.
    pub fn release(&self, digest: Digest) {
        self.give_back(digest, Some(Instant::now()));
    }

    /// Leaves the file for another import, at any time. Another upload may take its place at once.
    pub fn leave(&self, digest: Digest) {
        self.give_back(digest, None);
    }

    fn give_back(&self, digest: Digest, last_byte: Option<Instant>) {
        let mut slot = self.slot.locked();
        if let Some(upload) = slot.as_mut().filter(|upload| upload.digest == digest) {
            upload.taken = false;
            upload.last_byte = last_byte;
        }
    }

    /// Removes the file: its images are in the store, or it is of no use.
    ///
    /// # Errors
    /// The file system fails.
    pub fn end(&self, digest: Digest) -> Result<(), UploadError> {
        let mut slot = self.slot.locked();
        match slot.take() {
            Some(upload) if upload.digest == digest => {
                fs::remove_file(&upload.path).map_err(self.failed("clearing"))
            }
            other => {
                *slot = other;
                Ok(())
            }
        }
    }
}

/// The upload of this bundle, unless it is being imported.
fn open_upload(slot: &mut Option<Upload>, digest: Digest) -> Result<&mut Upload, UploadError> {
    match slot {
        Some(upload) if upload.digest == digest && upload.taken => {
            Err(UploadError::Taken(upload.digest))
        }
        Some(upload) if upload.digest == digest => Ok(upload),
        _ => Err(UploadError::NotBegun(digest)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read as _;

    use super::*;

    fn uploads() -> (tempfile::TempDir, Uploads) {
        let directory = tempfile::tempdir().unwrap();
        let uploads = Uploads::new(directory.path().join("uploads"));
        (directory, uploads)
    }

    #[test]
    fn an_upload_goes_on_where_it_was_cut_off() {
        let (directory, uploads) = uploads();
        let digest = Digest::of(b"bundle");
        assert_eq!(uploads.begin(digest, 6).unwrap(), 0);
        assert_eq!(uploads.write(digest, 0, b"bun").unwrap(), 3);
        assert_eq!(uploads.begin(digest, 6).unwrap(), 3);
        let wrong = uploads.write(digest, 2, b"dle").unwrap_err();
        assert!(matches!(
            wrong,
            UploadError::Offset {
                expected: 3,
                given: 2
            }
        ));
        assert!(matches!(
            uploads.take(digest),
            Err(UploadError::Incomplete { .. })
        ));

        // A restart of machined.
        let uploads = Uploads::new(directory.path().join("uploads"));
        assert!(matches!(
            uploads.write(digest, 3, b"dle"),
            Err(UploadError::NotBegun(_))
        ));
        assert_eq!(uploads.begin(digest, 6).unwrap(), 3);
        assert!(matches!(
            uploads.write(digest, 3, b"dle!"),
            Err(UploadError::TooLong(6))
        ));
        assert_eq!(uploads.write(digest, 3, b"dle").unwrap(), 6);
        let mut read = String::new();
        uploads
            .take(digest)
            .unwrap()
            .read_to_string(&mut read)
            .unwrap();
        assert_eq!(read, "bundle");
        assert!(matches!(
            uploads.begin(digest, 6),
            Err(UploadError::Taken(_))
        ));
        assert!(matches!(
            uploads.write(digest, 6, b""),
            Err(UploadError::Taken(_))
        ));
        uploads.release(digest);
        assert_eq!(uploads.begin(digest, 6).unwrap(), 6);
        uploads.end(digest).unwrap();
        assert_eq!(uploads.begin(digest, 6).unwrap(), 0);
    }

    #[test]
    fn there_is_one_at_a_time() {
        let (_directory, uploads) = uploads();
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        uploads.begin(one, 3).unwrap();
        uploads.write(one, 0, b"o").unwrap();
        let busy = uploads.begin(other, 5).unwrap_err();
        assert!(matches!(busy, UploadError::Busy { .. }), "{busy}");
        let long_ago = Instant::now().checked_sub(SILENCE);
        uploads.slot.locked().as_mut().unwrap().last_byte = long_ago;
        assert_eq!(uploads.begin(other, 5).unwrap(), 0);
        assert!(matches!(
            uploads.write(one, 1, b"n"),
            Err(UploadError::NotBegun(_))
        ));
        assert_eq!(fs::read_dir(&uploads.directory).unwrap().count(), 1);
    }

    #[test]
    fn what_the_rules_refuse_is_imported_later_and_stands_in_nobodys_way() {
        let (_directory, uploads) = uploads();
        let (refused, other) = (Digest::of(b"refused"), Digest::of(b"other"));
        uploads.begin(refused, 3).unwrap();
        uploads.write(refused, 0, b"abc").unwrap();
        uploads.take(refused).unwrap();
        uploads.leave(refused);
        assert_eq!(uploads.begin(refused, 3).unwrap(), 3);
        uploads.take(refused).unwrap();
        uploads.leave(refused);
        assert_eq!(uploads.begin(other, 5).unwrap(), 0);
    }

    #[test]
    fn more_than_there_is_room_for_is_refused_with_the_numbers() {
        let (_directory, uploads) = uploads();
        let error = uploads.begin(Digest::of(b"huge"), 1 << 60).unwrap_err();
        assert!(matches!(error, UploadError::NoRoom { .. }));
        assert!(error.to_string().contains("are free on /var"), "{error}");
        assert_eq!(fs::read_dir(&uploads.directory).unwrap().count(), 0);
    }
}
