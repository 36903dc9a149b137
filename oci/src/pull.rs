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
use crate::store::{ImageStore, Incoming, NewImage, PulledImage, StoreError};
use crate::unpack::{Limits, Ownership, UnpackError, Unpacker};
use crate::verification::{Policy, Refusal, VerificationError, Verified, VerifiedImage};
use instar_http_client::HttpError;
use instar_values::Digest;
use instar_values::ImageReference;

/// Timeout for a whole image at any speed: a registry that keeps just above the lowest speed could hold an upgrade for weeks.
const LONGEST_PULL: Duration = Duration::from_secs(6 * 3600);

/// Pulls images that a policy allows. It holds tokens and certificates: make one when it is needed.
pub struct Puller {
    client: RegistryClient,
    policy: Policy,
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

/// The values that go to the unpacking thread and come back.
struct Work {
    incoming: Incoming,
    unpacker: Unpacker,
}

impl Puller {
    /// A puller with these settings and the usual retries.
    pub fn new(registries: Arc<Registries>, policy: Policy) -> Self {
        Puller::with_retries(registries, policy, Retries::default())
    }

    /// A puller with other retries.
    pub fn with_retries(registries: Arc<Registries>, policy: Policy, retries: Retries) -> Self {
        Puller {
            client: RegistryClient::new(registries, retries),
            policy,
        }
    }

    /// The owner's policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Checks that the settings of all registries in the machine config can be used.
    ///
    /// # Errors
    /// The first host with invalid settings.
    pub fn check_settings(&self) -> Result<(), HttpError> {
        self.client.check_settings()
    }

    /// Resolves a name: digest, config and labels. No layer is transferred. The registry is not asked for images that the policy denies.
    pub async fn resolve(&self, reference: &ImageReference) -> Result<ResolvedImage, PullError> {
        self.policy.refuse_denied(reference)?;
        Ok(self.client.resolve(reference).await?)
    }

    /// Verifies a resolved image as the policy says. Its registry is asked for signatures.
    pub async fn verify(&self, image: ResolvedImage) -> Result<Verified<ResolvedImage>, PullError> {
        Ok(self.policy.verify(&self.client, image).await?)
    }

    /// Resolves a name, and verifies the image.
    pub async fn look_up(
        &self,
        reference: &ImageReference,
    ) -> Result<Verified<ResolvedImage>, PullError> {
        self.verify(self.resolve(reference).await?).await
    }

    /// Admits an image of the store that is to be used by this name: by the signatures that are kept with it; if these are not enough, by
    /// those at its registry, and these are kept from then on.
    ///
    /// # Errors
    /// The policy's refusal, also if the registry cannot be asked.
    pub async fn admit(
        &self,
        name: &ImageReference,
        image: PulledImage,
        store: &ImageStore,
    ) -> Result<VerifiedImage, PullError> {
        let refusal = match self.policy.admit(name, image.clone()) {
            Ok(verified) => return Ok(verified),
            Err(refusal) => refusal,
        };
        let Refusal::NotSigned { rule, key, .. } = &*refusal else {
            return Err(refusal.into());
        };
        // The document that the name pointed to at the pull is signed more often than the image in it.
        let named = name.at(image.named_digest());
        let resolved = self.client.resolve(&named).await;
        let resolved = resolved.map_err(|source| {
            Box::new(VerificationError::Registry {
                rule: rule.clone(),
                key: *key,
                source,
            })
        })?;
        if resolved.digest() != image.digest() {
            return Err(refusal.into());
        }
        let verified = self.verify(resolved).await?.same_image(image);
        let kept = verified
            .proof()
            .map(|proof| store.keep_proof(&verified, proof));
        kept.transpose().map_err(|source| PullError::Store {
            reference: name.clone(),
            source,
        })?;
        Ok(verified)
    }

    /// Pulls a resolved image into the store, unless it is there.
    pub async fn pull(
        &self,
        image: &Verified<ResolvedImage>,
        store: &ImageStore,
        limits: &Limits,
    ) -> Result<VerifiedImage, PullError> {
        self.pull_with_progress(image, store, limits, &|_| {}).await
    }

    /// The same, and reports each piece that arrives. Dropping the future ends the pull and leaves nothing behind.
    pub async fn pull_with_progress(
        &self,
        image: &Verified<ResolvedImage>,
        store: &ImageStore,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<VerifiedImage, PullError> {
        let late = PullError::Late {
            reference: image.reference.clone(),
        };
        let pulled = timeout(LONGEST_PULL, self.transfer(image, store, limits, progress))
            .await
            .unwrap_or(Err(late))?;
        Ok(image.same_image(pulled))
    }

    async fn transfer(
        &self,
        image: &Verified<ResolvedImage>,
        store: &ImageStore,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<PulledImage, PullError> {
        let reference = &image.reference;
        let stored = |source| PullError::Store {
            reference: reference.clone(),
            source,
        };
        if let Some(pulled) = already_here(image, store).map_err(stored)? {
            return Ok(pulled);
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
        let new = NewImage {
            name: reference.clone(),
            named_digest: image.named_digest,
            config: image.config.clone(),
            download_bytes: total,
            unpacked_bytes: work.unpacker.bytes(),
        };
        let (proof, keeper) = (image.proof().cloned(), store.clone());
        let committed = blocking_io::to_its_end(move || {
            if let Some(proof) = &proof {
                work.incoming.keep_proof(proof)?;
            }
            let pulled = work.incoming.commit(new)?;
            // Another pull of the same image may have been faster, under another policy.
            if let Some(proof) = &proof {
                keeper.keep_proof(&pulled, proof)?;
            }
            Ok(pulled)
        });
        let committed = committed.await.map_err(|source| PullError::Interrupted {
            reference: reference.clone(),
            source,
        })?;
        committed.map_err(stored)
    }
}

/// Gives an image that the store has already its new name, and the signature that it was verified by now.
pub(crate) fn already_here(
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
) -> Result<Option<PulledImage>, StoreError> {
    let Some(pulled) = store.get(image.digest()) else {
        return Ok(None);
    };
    if let Some(proof) = image.proof() {
        store.keep_proof(&pulled, proof)?;
    }
    store.add_name(pulled, &image.reference).map(Some)
}

/// A node runs as root and keeps owners; the tests of a developer cannot.
pub(crate) fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() {
        Ownership::Keep
    } else {
        Ownership::Ignore
    }
}
