//! Unpacks the layers of an image into one directory.
//!
//! Three things must never happen: a byte written outside the directory, a blob or unpacked stream accepted that does not match its digest, memory or
//! disk used without bound. The content of an image is hostile until shown otherwise: archive headers become checked values (`entry`, `path`), bytes
//! pass through counters and hashes (`stream`), and only the kernel resolves paths, confined to the directory (`tree`).

mod ahead;
mod archive;
mod decoder;
mod entry;
#[cfg(test)]
mod memory_tests;
mod path;
mod sparse;
mod stream;
#[cfg(test)]
pub(super) mod test_tar;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::manifest::Layer;
use archive::Archive;
pub use entry::EntryRefusal;
use entry::{Change, EntryParser, NoEntry};
use instar_values::Digest;
pub use path::PathRefusal;
pub use sparse::SparseRefusal;
use stream::{Blob, Unpacked};
use tree::Tree;
pub use tree::TreeRefusal;

/// Limits for one image, over all its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the unpacked archives: a little more than the bytes on disk. The holes of sparse files count as well: they take no disk, but
    /// whoever compares the image with its seal reads them.
    pub unpacked_bytes: u64,
    /// Files, directories and links, including directories without an entry of their own.
    pub entries: u64,
    /// Unpacked bytes per packed byte, per layer.
    pub ratio: u64,
    /// Unpacked bytes of a layer from which the ratio is checked: real images hold preallocated files, hundreds of MiB of zeros.
    pub ratio_from: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            unpacked_bytes: 4 << 30,
            entries: 500_000,
            ratio: 200,
            ratio_from: 512 << 20,
        }
    }
}

/// Whether files get the owners of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The owners of the image, as on a node; needs root.
    Keep,
    /// Everything belongs to the unpacking user; file capabilities are dropped.
    Ignore,
}

/// Takes room for bytes that are about to be unpacked; returns whether there is room for them.
pub(crate) type TakeRoom = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// Why a layer was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The transfer of the blob failed.
    #[error("reading the blob failed")]
    Blob(#[source] io::Error),
    /// The blob ended early.
    #[error("the blob ended after {read} of {expected} bytes")]
    BlobTruncated {
        /// Bytes received.
        read: u64,
        /// Bytes in the manifest.
        expected: u64,
    },
    /// The blob is longer than its size in the manifest.
    #[error("the blob is longer than the {expected} bytes that the manifest says")]
    BlobTooLong {
        /// Bytes in the manifest.
        expected: u64,
    },
    /// The blob has another digest.
    #[error("the blob has the digest {actual}, not {expected}")]
    BlobDigest {
        /// The digest in the manifest.
        expected: Digest,
        /// The digest of the received bytes.
        actual: Digest,
    },
    /// The blob is right, but its content is not the one that the config names.
    #[error("the unpacked layer has the digest {actual}, but the image config says {expected}")]
    DiffId {
        /// The digest in the config.
        expected: Digest,
        /// The digest of the unpacked content.
        actual: Digest,
    },
    /// Decompression or archive failed.
    #[error("the layer is not a readable archive")]
    Archive(#[source] io::Error),
    /// The unpacked size is above the limit: a bomb, or an image too large for this machine.
    #[error("the image unpacks to more than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The size with the holes of sparse files is above the limit: a bomb for whoever reads them.
    #[error("the image unpacks to more than {limit} bytes, with the holes of its sparse files")]
    TooHollow {
        /// The limit in bytes.
        limit: u64,
    },
    /// The compression ratio is above the limit: a bomb.
    #[error("the layer unpacks to more than {limit} times its packed size")]
    TooDense {
        /// The limit, as unpacked bytes per packed byte.
        limit: u64,
    },
    /// There are more entries than the limit: a bomb.
    #[error("the image has more than {limit} files")]
    TooMany {
        /// The limit in entries.
        limit: u64,
    },
    /// An entry of the archive is refused.
    #[error("entry {entry:?} is refused")]
    Entry {
        /// Its name in the archive.
        entry: String,
        /// The reason.
        #[source]
        refusal: EntryRefusal,
    },
    /// The change that an entry makes to the directory is refused.
    #[error("entry {entry:?} cannot be unpacked")]
    Tree {
        /// Its path in the image.
        entry: String,
        /// The reason.
        #[source]
        refusal: TreeRefusal,
    },
    /// The thread that decodes a layer could not be started, or failed.
    #[error("a layer needs a thread that decodes it")]
    Thread(#[source] io::Error),
    /// The directory itself failed.
    #[error("the directory to unpack into cannot be used")]
    Directory(#[source] io::Error),
}

/// Unpacks the layers of one image, lowest first.
pub struct Unpacker {
    tree: Tree,
    limits: Limits,
    room: Option<TakeRoom>,
    bytes: u64,
    /// Bytes of the holes of sparse files.
    holes: u64,
    /// Limit on the unpacked bytes and the holes together.
    with_holes: u64,
    entries: u64,
    devices: Devices,
}

/// Device nodes that were left out: an image cannot bring devices, every container has the same /dev.
#[derive(Debug, Default)]
pub struct Devices {
    /// Number of devices.
    count: u64,
    /// Path of the first one.
    first: String,
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Devices { count, first } = self;
        match count {
            1 => write!(f, "the device node {first} is left out")?,
            _ => write!(f, "{count} device nodes are left out, the first is {first}")?,
        }
        f.write_str("; containers have the devices of /dev that every container has")
    }
}

impl Unpacker {
    /// Unpacks into this existing, empty directory.
    pub fn new(root: &Path, limits: Limits, ownership: Ownership) -> Result<Self, UnpackError> {
        let tree = Tree::open(root, ownership).map_err(UnpackError::Directory)?;
        Ok(Unpacker {
            tree,
            limits,
            room: None,
            bytes: 0,
            holes: 0,
            with_holes: limits.unpacked_bytes,
            entries: 0,
            devices: Devices::default(),
        })
    }

    /// The same, which takes room for each piece. A lack of room is told as the limit on the unpacked size.
    #[must_use]
    pub(crate) fn within(self, room: TakeRoom) -> Self {
        Unpacker {
            room: Some(room),
            ..self
        }
    }

    /// The same with this limit on the unpacked bytes and the holes of sparse files together. For a disk whose room is the limit on the
    /// unpacked bytes: holes take none of it.
    #[must_use]
    pub(crate) fn with_holes(self, limit: u64) -> Self {
        Unpacker {
            with_holes: limit,
            ..self
        }
    }

    /// The device nodes of the image that were left out, if any.
    pub fn left_out(&self) -> Option<&Devices> {
        (self.devices.count > 0).then_some(&self.devices)
    }

    /// Unpacked bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a layer on top. After an error the directory is unusable. The blob is read, hashed and decoded on a thread of its own.
    pub fn layer(&mut self, layer: &Layer, blob: impl Read + Send) -> Result<(), UnpackError> {
        let (applied, decoded) = thread::scope(|scope| {
            let (limits, room, before) = (self.limits, self.room.clone(), self.bytes);
            let (writer, reader) = ahead::pipe();
            let blob = Blob::new(blob, layer.size);
            let decoding = thread::Builder::new()
                .name("decode".to_owned())
                .spawn_scoped(scope, move || decode(blob, limits, room, before, writer))
                .map_err(UnpackError::Thread)?;
            let applied = self.unpack_all(reader);
            let decoded = decoding.join().map_err(|_| {
                UnpackError::Thread(io::Error::other("the thread that decodes has failed"))
            })?;
            Ok((applied, decoded))
        })?;
        self.bytes = decoded.bytes;
        if let Some(limit) = decoded.limit {
            return Err(limit);
        }
        match applied {
            Ok(()) => decoded.blob.verify(layer.digest)?,
            // The right bytes would not change this error: no need to wait for the rest.
            Err(
                error @ (UnpackError::Entry { .. }
                | UnpackError::Tree { .. }
                | UnpackError::TooHollow { .. }
                | UnpackError::TooMany { .. }),
            ) => return Err(error),
            // An error of decompression has two possible causes: it is not the right blob, or it was packed badly.
            Err(error) => {
                decoded.blob.verify(layer.digest)?;
                return Err(error);
            }
        }
        let diff_id = decoded.diff_id.unwrap_or(layer.digest);
        if diff_id != layer.diff_id {
            return Err(UnpackError::DiffId {
                expected: layer.diff_id,
                actual: diff_id,
            });
        }
        // Once more: now the bytes of this layer are known.
        self.count_holes(0)?;
        self.tree.end_layer();
        Ok(())
    }

    /// Unpacks the archive, and reads the bytes after its end mark: they belong to the digest too.
    fn unpack_all(&mut self, mut reader: ahead::Reader) -> Result<(), UnpackError> {
        self.entries(&mut reader)?;
        reader.drain().map_err(UnpackError::Archive)
    }

    /// Adds to the number of entries, and checks the limit.
    fn count(&mut self, more: u64) -> Result<(), UnpackError> {
        let limit = self.limits.entries;
        self.entries = self.entries.saturating_add(more);
        match self.entries > limit {
            true => Err(UnpackError::TooMany { limit }),
            false => Ok(()),
        }
    }

    /// Adds to the bytes of holes, and checks the limit on them and the bytes of the layers so far.
    fn count_holes(&mut self, more: u64) -> Result<(), UnpackError> {
        let limit = self.with_holes;
        self.holes = self.holes.saturating_add(more);
        match self.holes > 0 && self.bytes.saturating_add(self.holes) > limit {
            true => Err(UnpackError::TooHollow { limit }),
            false => Ok(()),
        }
    }

    fn entries(&mut self, unpacked: &mut impl Read) -> Result<(), UnpackError> {
        let mut archive = Archive::new(unpacked);
        let mut parser = EntryParser::default();
        while let Some(header) = archive.next_header().map_err(UnpackError::Archive)? {
            self.count(1)?;
            let entry = parser
                .entry(&header, &mut archive)
                .map_err(|reason| match reason {
                    NoEntry::Archive(source) => UnpackError::Archive(source),
                    NoEntry::Refused(entry, refusal) => UnpackError::Entry { entry, refusal },
                })?;
            let Some(entry) = entry else { continue };
            if let Change::SparseFile(map) = &entry.change {
                self.count_holes(map.holes())?;
            }
            self.tree
                .apply(&entry, &mut archive)
                .map_err(|refusal| match refusal {
                    TreeRefusal::Content(source) => UnpackError::Archive(source),
                    refusal => UnpackError::Tree {
                        entry: entry.path.to_string(),
                        refusal,
                    },
                })?;
            let implied = self.tree.take_implied();
            self.count(implied)?;
            if let Change::Device { given: false } = entry.change {
                if self.devices.count == 0 {
                    self.devices.first = entry.path.to_string();
                }
                self.devices.count += 1;
            }
        }
        Ok(())
    }
}

/// The result of the thread that decodes.
struct Decoded<R> {
    /// The blob, as far as it was read.
    blob: Blob<R>,
    /// Unpacked bytes of this layer and the ones before.
    bytes: u64,
    /// The digest of the content, if it differs from the blob's.
    diff_id: Option<Digest>,
    /// The limit that ended the decoding, if one did.
    limit: Option<UnpackError>,
}

/// Reads a blob through its digest, decompression and limits into the pipe. `before`: unpacked bytes of the layers before.
fn decode<R: Read>(
    mut blob: Blob<R>,
    limits: Limits,
    room: Option<TakeRoom>,
    before: u64,
    pipe: ahead::Writer,
) -> Decoded<R> {
    let (bytes, diff_id, limit) = match Unpacked::new(&mut blob, limits, room, before) {
        Ok(mut unpacked) => {
            pipe.pass_on(&mut unpacked);
            unpacked.finish()
        }
        Err(error) => {
            pipe.fail(error);
            (before, None, None)
        }
    };
    Decoded {
        blob,
        bytes,
        diff_id,
        limit,
    }
}
