//! Pulls an image: from its name to an unpacked root filesystem in the store.
//!
//! Two steps, so that labels can be checked before any layer is transferred. Layers go from the network straight into the unpacking, one
//! after the other: no blob is ever stored, and memory stays at some hundred KiB.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::timeout;

use instar_base::blocking_io::{self, NoAnswer};

use crate::registries::Registries;
use crate::registry::{Download, RegistryClient, RegistryError, ResolvedImage, Retries};
use crate::store::{ImageStore, Incoming, PulledImage, StoreError};
use crate::unpack::{Limits, Ownership, UnpackError, Unpacker};
use instar_http_client::HttpError;
use instar_values::Digest;
use instar_values::ImageReference;

/// Timeout for a whole image at any speed: a registry that keeps just above the lowest speed could hold an upgrade for weeks.
const LONGEST_PULL: Duration = Duration::from_secs(6 * 3600);

/// Pulls images. It holds tokens and certificates: make one when it is needed.
pub struct Puller {
    client: RegistryClient,
}

/// The progress of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes received.
    pub bytes: u64,
    /// Bytes in total.
    pub total: u64,
}

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

/// The values that go to the unpacking thread and come back.
struct Work {
    incoming: Incoming,
    unpacker: Unpacker,
}

impl Puller {
    /// A puller with these settings and the usual retries.
    pub fn new(registries: Arc<Registries>) -> Self {
        Puller::with_retries(registries, Retries::default())
    }

    /// A puller with other retries.
    pub fn with_retries(registries: Arc<Registries>, retries: Retries) -> Self {
        Puller {
            client: RegistryClient::new(registries, retries),
        }
    }

    /// Checks that the settings of all registries in the machine config can be used.
    ///
    /// # Errors
    /// The first host with invalid settings.
    pub fn check_settings(&self) -> Result<(), HttpError> {
        self.client.check_settings()
    }

    /// Resolves a name: digest, config and labels. No layer is transferred.
    pub async fn resolve(&self, reference: &ImageReference) -> Result<ResolvedImage, PullError> {
        Ok(self.client.resolve(reference).await?)
    }

    /// Pulls a resolved image into the store, unless it is there.
    pub async fn pull(
        &self,
        image: &ResolvedImage,
        store: &ImageStore,
        limits: &Limits,
    ) -> Result<PulledImage, PullError> {
        self.pull_with_progress(image, store, limits, &|_| {}).await
    }

    /// The same, and reports each piece that arrives. Dropping the future ends the pull and leaves nothing behind.
    pub async fn pull_with_progress(
        &self,
        image: &ResolvedImage,
        store: &ImageStore,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<PulledImage, PullError> {
        let late = PullError::Late {
            reference: image.reference.clone(),
        };
        timeout(LONGEST_PULL, self.transfer(image, store, limits, progress))
            .await
            .unwrap_or(Err(late))
    }

    async fn transfer(
        &self,
        image: &ResolvedImage,
        store: &ImageStore,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<PulledImage, PullError> {
        let reference = &image.reference;
        let stored = |source| PullError::Store {
            reference: reference.clone(),
            source,
        };
        if let Some(pulled) = store.get(image.digest()) {
            return store.add_name(pulled, reference).map_err(stored);
        }
        let total = image.download_bytes();
        if total > limits.unpacked_bytes {
            let limit = limits.unpacked_bytes;
            return Err(PullError::TooLarge {
                reference: reference.clone(),
                bytes: total,
                limit,
            });
        }
        let bytes = AtomicU64::new(0);
        let arrived = |count| {
            let bytes = bytes.fetch_add(count, Ordering::Relaxed) + count;
            progress(Progress { bytes, total });
        };
        let incoming = store.incoming(image.digest()).map_err(stored)?;
        let refused = |layer, source| PullError::Layer {
            reference: reference.clone(),
            layer,
            source,
        };
        let unpacker = Unpacker::new(&incoming.rootfs(), *limits, ownership())
            .map_err(|source| refused(image.digest(), source))?;
        let mut work = Work { incoming, unpacker };
        for layer in &image.layers {
            let (upstream, mut download) = Download::channel();
            let unpacking = {
                let layer = layer.clone();
                blocking_io::to_its_end(move || {
                    let result = work.unpacker.layer(&layer, &mut download);
                    (work, result)
                })
            };
            let transfer = pin!(self.client.download(reference, layer, upstream, &arrived));
            // If unpacking ends first, the rest of the transfer is not needed.
            let (back, result) = match select(pin!(unpacking), transfer).await {
                Either::Left((unpacked, _)) => unpacked,
                Either::Right(((), unpacking)) => unpacking.await,
            }
            .map_err(|source| PullError::Interrupted {
                reference: reference.clone(),
                source,
            })?;
            work = back;
            result.map_err(|source| refused(layer.digest, source))?;
        }
        if let Some(devices) = work.unpacker.left_out() {
            tracing::warn!("{reference}: {devices}");
        }
        let (name, config) = (reference.clone(), image.config.clone());
        let committed = blocking_io::to_its_end(move || {
            let unpacked = work.unpacker.bytes();
            work.incoming.commit(&name, config, total, unpacked)
        });
        let committed = committed.await.map_err(|source| PullError::Interrupted {
            reference: reference.clone(),
            source,
        })?;
        committed.map_err(stored)
    }
}

/// A node runs as root and keeps owners; the tests of a developer cannot.
fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() {
        Ownership::Keep
    } else {
        Ownership::Ignore
    }
}
