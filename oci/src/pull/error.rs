//! Why an image is not in the store.

use std::time::Duration;

use instar_base::blocking_io::NoAnswer;
use instar_values::{Digest, ImageReference};

use crate::registry::RegistryError;
use crate::store::NoRoom;
use crate::store_error::StoreError;
use crate::unpack::UnpackError;
use crate::verification::{Refusal, VerificationError};

/// Timeout for a whole image at any speed: a registry that keeps just above the lowest speed could hold an upgrade for weeks.
pub(super) const LONGEST_PULL: Duration = Duration::from_secs(6 * 3600);

/// Why an image is not in the store.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name could not be resolved.
    #[error("the image cannot be resolved")]
    Resolve(#[from] RegistryError),
    /// The image is larger than the limit, by its manifest.
    #[error("{reference} has {bytes} bytes to download, but may unpack to {limit} at most")]
    TooLarge {
        /// The image.
        reference: ImageReference,
        /// Bytes of all layers.
        bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// There is no room on the disk.
    #[error(
        "there is no room for {reference}: {lack}; remove an image or files of a user volume, or take a larger disk"
    )]
    NoRoom {
        /// The image.
        reference: ImageReference,
        /// The numbers.
        lack: NoRoom,
    },
    /// A layer is damaged, hostile or could not be transferred.
    #[error("layer {layer} of {reference} is not taken")]
    Layer {
        /// The image.
        reference: ImageReference,
        /// The layer's blob.
        layer: Digest,
        /// The cause.
        source: UnpackError,
    },
    /// The pull took longer than its timeout.
    #[error("pulling {reference} took longer than {} hours", LONGEST_PULL.as_secs() / 3600)]
    Late {
        /// The image.
        reference: ImageReference,
    },
    /// The store failed.
    #[error("{reference} cannot be stored")]
    Store {
        /// The image.
        reference: ImageReference,
        /// The cause.
        source: StoreError,
    },
    /// The owner's policy does not allow the image, or it cannot be verified.
    #[error(transparent)]
    NotVerified(Box<VerificationError>),
    /// The thread that unpacks ended without a result.
    #[error("unpacking {reference} was interrupted")]
    Interrupted {
        /// The image.
        reference: ImageReference,
        /// The cause.
        source: NoAnswer,
    },
}

impl PullError {
    /// Whether the registry and its mirrors cannot be reached ([`RegistryError::is_unreachable`]), while resolving the image or in the
    /// middle of a layer. Only then may an older copy of the image be used.
    pub fn is_unreachable(&self) -> bool {
        match self {
            PullError::Resolve(error) => error.is_unreachable(),
            PullError::NotVerified(error) => error.is_unreachable(),
            PullError::Late { .. } => true,
            // The network end of a download passes its errors to the unpacking end as I/O errors.
            PullError::Layer {
                source: UnpackError::Blob(error),
                ..
            } => error
                .get_ref()
                .and_then(|error| error.downcast_ref::<RegistryError>())
                .is_some_and(RegistryError::is_unreachable),
            _ => false,
        }
    }
}

impl From<Box<VerificationError>> for PullError {
    fn from(error: Box<VerificationError>) -> Self {
        PullError::NotVerified(error)
    }
}

impl From<Box<Refusal>> for PullError {
    fn from(refusal: Box<Refusal>) -> Self {
        PullError::NotVerified(Box::new(VerificationError::Refused(refusal)))
    }
}
