//! From the layers of an image to one directory.
//!
//! What must never happen: a byte written outside the directory, a blob or unpacked stream accepted that is not the
//! one its digest names, memory or disk used without bound. What an image brings is hostile until shown otherwise:
//! archive headers become checked values (`entry`, `path`), bytes pass through counters and hashes (`stream`), and
//! only the kernel resolves paths, confined to the directory (`tree`).

mod archive;
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

/// What one image may use, over all its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the unpacked archives: a little more than what lands on disk.
    pub unpacked_bytes: u64,
    /// Files, directories and links, those directories included that no entry is about.
    pub entries: u64,
    /// Unpacked bytes for one packed byte, per layer.
    pub ratio: u64,
    /// Unpacked bytes of a layer from which on the ratio counts: real images hold preallocated files, hundreds of MiB of zeros.
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

/// Whether files get the owners that the image names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// As a node does; needs root.
    Keep,
    /// Everything belongs to who unpacks; file capabilities are dropped.
    Ignore,
}

/// Why a layer was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It stopped coming.
    #[error("reading the blob failed")]
    Blob(#[source] io::Error),
    /// It ended early.
    #[error("the blob ended after {read} of {expected} bytes")]
    BlobTruncated {
        /// Bytes that came.
        read: u64,
        /// Bytes that the manifest says.
        expected: u64,
    },
    /// It went on.
    #[error("the blob is longer than the {expected} bytes that the manifest says")]
    BlobTooLong {
        /// Bytes that the manifest says.
        expected: u64,
    },
    /// It is something else.
    #[error("the blob has the digest {actual}, not {expected}")]
    BlobDigest {
        /// What the manifest says.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// The blob is right, its content is not what the config says.
    #[error("the unpacked layer has the digest {actual}, but the image config says {expected}")]
    DiffId {
        /// What the config says.
        expected: Digest,
        /// What came out.
        actual: Digest,
    },
    /// Decompression or archive.
    #[error("the layer is not a readable archive")]
    Archive(#[source] io::Error),
    /// Bomb, or an image too large for this machine.
    #[error("the image unpacks to more than {limit} bytes")]
    TooLarge {
        /// Bytes.
        limit: u64,
    },
    /// Bomb.
    #[error("the layer unpacks to more than {limit} times its packed size")]
    TooDense {
        /// Times.
        limit: u64,
    },
    /// Bomb.
    #[error("the image has more than {limit} files")]
    TooMany {
        /// Entries.
        limit: u64,
    },
    /// What an archive says about a path is not taken.
    #[error("entry {entry:?} is refused")]
    Entry {
        /// Its name as the archive has it.
        entry: String,
        /// Why.
        #[source]
        refusal: EntryRefusal,
    },
    /// What an entry would do to the directory is not done.
    #[error("entry {entry:?} cannot be unpacked")]
    Tree {
        /// Its path in the image.
        entry: String,
        /// Why.
        #[source]
        refusal: TreeRefusal,
    },
    /// The directory itself.
    #[error("the directory to unpack into cannot be used")]
    Directory(#[source] io::Error),
}

/// Unpacks the layers of one image, lowest first.
pub struct Unpacker {
    tree: Tree,
    limits: Limits,
    bytes: u64,
    entries: u64,
    devices: Devices,
}

/// Device nodes that were left out: an image cannot bring devices, every container has the same /dev.
#[derive(Debug, Default)]
pub struct Devices {
    /// How many.
    count: u64,
    /// Path of the first.
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
            bytes: 0,
            entries: 0,
            devices: Devices::default(),
        })
    }

    /// What is not there although the image has it.
    pub fn left_out(&self) -> Option<&Devices> {
        (self.devices.count > 0).then_some(&self.devices)
    }

    /// Bytes of all archives so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a layer on top. After an error the directory is of no use any more.
    pub fn layer(&mut self, layer: &Layer, blob: impl Read) -> Result<(), UnpackError> {
        let mut blob = Blob::new(blob, layer.size);
        let content = match Unpacked::new(&mut blob, self.limits, self.bytes) {
            Ok(mut unpacked) => {
                let content = self
                    .entries(&mut unpacked)
                    .and_then(|()| unpacked.drain().map_err(UnpackError::Archive));
                let (bytes, diff_id, limit) = unpacked.finish();
                self.bytes = bytes;
                if let Some(limit) = limit {
                    return Err(limit);
                }
                content.map(|()| diff_id)
            }
            Err(error) => Err(UnpackError::Archive(error)),
        };
        let diff_id = match content {
            Ok(diff_id) => {
                blob.verify(layer.digest)?;
                diff_id
            }
            // Nothing that the right bytes could change: no need to wait for the rest.
            Err(
                error @ (UnpackError::Entry { .. }
                | UnpackError::Tree { .. }
                | UnpackError::TooMany { .. }),
            ) => {
                return Err(error);
            }
            // Unreadable because it is not the right blob, or because it was packed so?
            Err(error) => {
                blob.verify(layer.digest)?;
                return Err(error);
            }
        };
        let diff_id = diff_id.unwrap_or(layer.digest);
        if diff_id != layer.diff_id {
            return Err(UnpackError::DiffId {
                expected: layer.diff_id,
                actual: diff_id,
            });
        }
        self.tree.end_layer();
        Ok(())
    }

    /// There is so much more to unpack than before.
    fn count(&mut self, more: u64) -> Result<(), UnpackError> {
        let limit = self.limits.entries;
        self.entries = self.entries.saturating_add(more);
        match self.entries > limit {
            true => Err(UnpackError::TooMany { limit }),
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
