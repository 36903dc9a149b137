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
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::byte_size::human_short;
use crate::base::lock::Lock as _;
use crate::oci::reserve_of;
use crate::values::Digest;

/// Time without a new byte after which another upload may take the place.
pub const SILENCE: Duration = Duration::from_secs(60);
/// Time without a new byte after which an upload is given up: its caller does not come back, and no config takes its bundle.
pub const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
/// Only root reads it.
const MODE: u32 = 0o600;

/// The place of uploads; clones share it.
#[derive(Debug, Clone)]
pub struct Uploads {
    directory: PathBuf,
    slot: Arc<Mutex<Option<Upload>>>,
}

/// The right to import an upload. Whoever drops it without a word leaves the file for another import, at any time: a caller who has hung up in the
/// wrong moment stands in nobody's way.
#[derive(Debug)]
pub struct TakenUpload {
    uploads: Uploads,
    digest: Digest,
    is_settled: bool,
}

impl TakenUpload {
    /// Leaves the file for another try, which is to be expected in a moment.
    pub fn release(mut self) {
        self.give_back(Some(Instant::now()));
    }

    /// Removes the file: its images are in the store, or it is of no use.
    ///
    /// # Errors
    /// The file system fails.
    pub fn end(mut self) -> Result<(), UploadError> {
        self.is_settled = true;
        self.uploads.end(self.digest)
    }

    fn give_back(&mut self, last_byte: Option<Instant>) {
        let is_first = !std::mem::replace(&mut self.is_settled, true);
        let mut slot = self.uploads.slot.locked();
        let upload = slot.as_mut().filter(|it| it.digest == self.digest);
        if let Some(upload) = upload.filter(|_| is_first) {
            upload.taken = false;
            upload.last_byte = last_byte;
        }
    }
}

impl Drop for TakenUpload {
    fn drop(&mut self) {
        self.give_back(None);
    }
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
        "there is no room for the bundle: it needs {} (its rest, and its images twice), {} are free on /var, of which {} are kept for upgrades; remove images or files",
        human_short(*needed),
        human_short(*free),
        human_short(*reserve)
    )]
    NoRoom {
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Bytes of these that are kept for upgrades.
        reserve: u64,
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
            slot: Arc::default(),
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
        let reserve = reserve_of(room.f_blocks.saturating_mul(room.f_frsize));
        if needed > free.saturating_sub(reserve) {
            // What is here of it may be what is missing.
            fs::remove_file(&path).map_err(self.failed("clearing"))?;
            return Err(UploadError::NoRoom {
                needed,
                free,
                reserve,
            });
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

    /// Removes the file of an upload to which nothing was added for this time, unless its images are being imported. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// The file system fails.
    pub fn forget(&self, silence: Duration) -> Result<bool, UploadError> {
        let mut slot = self.slot.locked();
        let is_in_use = slot.as_ref().is_some_and(|upload| {
            let last_byte = upload.last_byte;
            upload.taken || last_byte.is_some_and(|at| at.elapsed() < silence)
        });
        if is_in_use {
            return Ok(false);
        }
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            entries => entries.map_err(self.failed("listing"))?,
        };
        let mut has_removed = false;
        for entry in entries {
            let entry = entry.map_err(self.failed("listing"))?;
            let changed = entry.metadata().and_then(|file| file.modified());
            let changed = changed.map_err(self.failed("reading"))?;
            // A time in the future is from a wrong clock.
            if changed.elapsed().is_ok_and(|age| age >= silence) {
                fs::remove_file(entry.path()).map_err(self.failed("clearing"))?;
                has_removed = true;
            }
        }
        if has_removed {
            *slot = None;
        }
        Ok(has_removed)
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

    /// Takes the whole file for importing. Until the right to that is given back, no other upload begins.
    ///
    /// # Errors
    /// The upload is not open, or not all of it is here.
    pub fn take(&self, digest: Digest) -> Result<(File, TakenUpload), UploadError> {
        let mut slot = self.slot.locked();
        let upload = open_upload(&mut slot, digest)?;
        let (length, size) = (upload.length, upload.size);
        if length < size {
            return Err(UploadError::Incomplete { length, size });
        }
        let file = upload.file.try_clone();
        let file = file.map_err(self.failed("opening a file in"))?;
        upload.taken = true;
        let taken = TakenUpload {
            uploads: self.clone(),
            digest,
            is_settled: false,
        };
        Ok((file, taken))
    }

    fn end(&self, digest: Digest) -> Result<(), UploadError> {
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
mod tests;
