//! Why an operation of the store failed.

use std::io;
use std::path::{Path, PathBuf};

use instar_values::Digest;

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
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
    /// The image was never pulled, or is already removed.
    #[error("there is no image {0}")]
    Unknown(Digest),
    /// The blob was never received, or is already removed.
    #[error("there is no blob {0}")]
    NoBlob(Digest),
    /// A blob ended early.
    #[error("the blob {digest} has {length} bytes, where {size} are announced")]
    BlobTruncated {
        /// Its digest.
        digest: Digest,
        /// Bytes received.
        length: u64,
        /// Bytes announced.
        size: u64,
    },
    /// A blob is longer than announced.
    #[error("the blob {digest} is longer than the {size} bytes that are announced")]
    BlobTooLong {
        /// Its digest.
        digest: Digest,
        /// Bytes announced.
        size: u64,
    },
    /// A blob's content has another digest.
    #[error("the content received for the blob {digest} has the digest {actual}")]
    BlobDigest {
        /// The digest that it is to have.
        digest: Digest,
        /// The digest of its content.
        actual: Digest,
    },
}

/// Adds the operation and the path to an error of the kernel.
pub(crate) fn failed<'a>(
    step: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError::Io {
        step,
        path: path.to_owned(),
        source,
    }
}
