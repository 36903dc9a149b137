//! Files that images share: a regular file that several images have is one inode with several names.
//!
//! ```text
//! <store>/objects/<2 hex digits>/<64 hex digits>   a hard link of a file; the digits are the hash over its content and metadata
//! ```
//!
//! An object is never written to, as the images that it belongs to are not. It gets its name after the image that brought it was synced, so
//! that a power cut leaves no object without its data. Before it is linked into another image it is hashed again: damage must not spread.
//!
//! Within one image every file keeps an inode of its own, and hard links of an image stay as they are: programs see no difference.
//!
//! The decision: hard links of files rather than an overlay of layers, because an image is one tree here, with the semantics of unpacking
//! layers over each other. Reflinks were the other choice; ext4 has none.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, fstat, linkat, renameat, unlinkat, utimensat};
use rustix::io::Errno;

use crate::seal::{self, ContentHash, Follow, Metadata, SealedFile};
use crate::store_error::{StoreError, failed};
use crate::time_of_change::time_of_change;

/// The smallest file that is shared, in bytes: a smaller one takes a block of the disk, and its object a name in a directory.
const SMALLEST: u64 = 4097;
/// Limit on files of one image that become objects, and on the bytes of their paths: the list of them is kept in memory.
const MOST_NEW: usize = 50_000;
const MOST_PATHS: usize = 4 << 20;
/// The name of a link that is about to replace a file. An image's own file of this name makes linking fail, and is not shared.
const BESIDE: &[u8] = b".instar-shared";

/// The shared files of a store.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    directory: PathBuf,
}

/// The hash over a file's content and metadata.
type Key = blake3::Hash;

/// The result of the search for a file's object.
pub(crate) enum Found {
    /// The file is not to be shared.
    Own,
    /// There is no object yet.
    New(Key),
    /// The object, whose content and metadata are those of the file.
    Known(Key, File),
}

/// Shares the files of one image with the store's objects.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The beginning of the keys that the image has: each file of it keeps an inode of its own.
    used: BTreeSet<u64>,
    new: Vec<(PathBuf, Key)>,
    paths: usize,
    shared_bytes: u64,
}

/// Files of an image that become objects once the image is on the disk.
#[derive(Debug, Default)]
pub(crate) struct NewObjects {
    files: Vec<(PathBuf, Key)>,
}

impl Objects {
    /// The objects below a store's directory.
    pub(crate) fn new(store: &Path) -> Self {
        Objects {
            directory: store.join("objects"),
        }
    }

    fn path(&self, key: &Key) -> PathBuf {
        let hex = key.to_hex();
        self.directory.join(&hex[..2]).join(hex.as_str())
    }

    /// Opens an object, and compares it with its key. A damaged one is removed.
    fn open(&self, key: &Key) -> io::Result<Option<File>> {
        let path = self.path(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = seal::metadata_of(&file)?;
        let content = seal::content_of(file.try_clone()?);
        // A disk that cannot read it has damaged it.
        if content.is_ok_and(|content| metadata.hash_anywhere(&content) == *key) {
            return Ok(Some(file));
        }
        tracing::warn!(
            "the shared file {} is damaged on the disk: it is shared no more",
            path.display()
        );
        fs::remove_file(&path)?;
        Ok(None)
    }

    /// Makes files of an image in its place objects. Its data are on the disk.
    pub(crate) fn publish(&self, image: &Path, new: &NewObjects) -> Result<(), StoreError> {
        for (path, key) in &new.files {
            let object = self.path(key);
            let link = || fs::hard_link(image.join(path), &object);
            let made = match (link(), object.parent()) {
                (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(parent).and_then(|()| link())
                }
                (made, _) => made,
            };
            match made {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(failed("linking", &object))?,
            }
        }
        Ok(())
    }

    /// Bytes that are counted more than once where each image counts all of its files: an object's own name is one of its links, and the
    /// first image's another. Images that come or go at the moment have links as well. Blocks for as long as the disk takes.
    pub(crate) fn repeated_bytes(&self) -> Result<u64, StoreError> {
        let mut bytes = 0_u64;
        for group in entries(&self.directory)? {
            for object in entries(&group)? {
                let metadata = match fs::symlink_metadata(&object) {
                    // A collection was faster.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    metadata => metadata.map_err(failed("reading", &object))?,
                };
                // Holes of a sparse file are counted nowhere.
                let content = metadata.len().min(metadata.blocks().saturating_mul(512));
                let again = metadata.nlink().saturating_sub(2);
                bytes = bytes.saturating_add(content.saturating_mul(again));
            }
        }
        Ok(bytes)
    }

    /// Removes objects that no image has any more; returns their bytes. Several may collect at once.
    pub(crate) fn collect(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for group in entries(&self.directory)? {
            let mut is_empty = true;
            for object in entries(&group)? {
                match remove_if_alone(&object)? {
                    Some(removed) => bytes += removed,
                    None => is_empty = false,
                }
            }
            if is_empty {
                // An object that came meanwhile keeps it.
                let _ = fs::remove_dir(&group);
            }
        }
        Ok(bytes)
    }
}

/// Removes an object that has no other name; returns its bytes, or `None` if it stays. One that another collection has removed has no bytes.
fn remove_if_alone(object: &Path) -> Result<Option<u64>, StoreError> {
    let metadata = match fs::symlink_metadata(object) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(0)),
        metadata => metadata.map_err(failed("reading", object))?,
    };
    if metadata.nlink() > 1 {
        return Ok(None);
    }
    match fs::remove_file(object) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(0)),
        Err(error) => Err(failed("removing", object)(error)),
        Ok(()) => Ok(Some(metadata.len())),
    }
}

/// The paths in a directory; a missing directory is empty.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("listing", directory)(error)),
    };
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths
        .collect::<io::Result<_>>()
        .map_err(failed("listing", directory))
}

impl Follow for Objects {
    type Found = Found;

    fn look(&self, metadata: &Metadata, content: &ContentHash, links: u64) -> io::Result<Found> {
        if metadata.size() < SMALLEST || links > 1 {
            return Ok(Found::Own);
        }
        let key = metadata.hash_anywhere(content);
        // An object that cannot be used costs space, and must not cost the image.
        let object = self.open(&key).unwrap_or_else(|error| {
            tracing::warn!("{} cannot be shared: {error}", self.path(&key).display());
            None
        });
        Ok(match object {
            Some(file) => Found::Known(key, file),
            None => Found::New(key),
        })
    }
}

impl Sharing {
    /// Shares a file, in its turn.
    pub(crate) fn add(&mut self, file: SealedFile<'_, Found>) -> io::Result<()> {
        let key = match &file.found {
            Found::Own => return Ok(()),
            Found::New(key) | Found::Known(key, _) => *key,
        };
        let mut start = [0; 8];
        start.copy_from_slice(&key.as_bytes()[..8]);
        if !self.used.insert(u64::from_le_bytes(start)) {
            return Ok(());
        }
        match file.found {
            Found::Known(_, object) => {
                if replace(&file.place.parent, file.place.name(), &object)? {
                    self.shared_bytes += file.metadata.size();
                }
            }
            _ => {
                let path = &file.place.path;
                self.paths += path.len();
                if self.new.len() < MOST_NEW && self.paths < MOST_PATHS {
                    use std::os::unix::ffi::OsStrExt as _;
                    let path = std::ffi::OsStr::from_bytes(path);
                    self.new.push((path.into(), key));
                }
            }
        }
        Ok(())
    }

    /// Bytes of files that other images had already.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.shared_bytes
    }

    /// The files that become objects.
    pub(crate) fn finish(self) -> NewObjects {
        NewObjects { files: self.new }
    }
}

/// Replaces a file by a link to an object; returns whether it has. The directory keeps its time, which is the image's.
fn replace(parent: &impl std::os::fd::AsFd, name: &[u8], object: &File) -> io::Result<bool> {
    use std::os::fd::AsRawFd as _;
    let time = time_of_change(&fstat(parent)?);
    // By its descriptor: the object that was compared, whatever its path is by now.
    let source = format!("/proc/self/fd/{}", object.as_raw_fd());
    let linked = match linkat(CWD, source, parent, BESIDE, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => match renameat(parent, BESIDE, parent, name) {
            Ok(()) => true,
            Err(errno) => {
                unlinkat(parent, BESIDE, AtFlags::empty())?;
                return Err(errno.into());
            }
        },
        // It has as many names as it can have, or was removed meanwhile, or the image has a file of that name.
        Err(Errno::MLINK | Errno::NOENT | Errno::EXIST) => false,
        Err(errno) => return Err(errno.into()),
    };
    utimensat(parent, ".", &time, AtFlags::empty())?;
    Ok(linked)
}

#[cfg(test)]
mod tests;
