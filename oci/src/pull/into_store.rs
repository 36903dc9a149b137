//! Makes a resolved image one of the store: uses the one that is there if its files are whole, else unpacks its layers.

use std::collections::BTreeSet;

use super::Progress;
use super::attempt::Attempt;
use super::error::PullError;
use crate::registry::{RegistryClient, ResolvedImage};
use crate::store::{ImageStore, PulledImage, Wholeness};
use crate::store_error::StoreError;
use crate::unpack::Limits;
use crate::verification::{Verified, VerifiedImage};
use instar_base::blocking_io;
use instar_values::{Digest, ImageReference};

/// Unpacks an image whose blobs are all in the store: no registry is asked. For images that came by another way than a registry.
///
/// # Errors
/// A blob is missing ([`PullError::is_unreachable`] holds then) or is not taken, or the store failed.
pub async fn import(
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    limits: &Limits,
) -> Result<VerifiedImage, PullError> {
    let imported = unpack(None, image, store, limits, &|_| {}).await?;
    Ok(image.same_image(imported))
}

/// Makes an image of the store from its layers, unless it is there.
pub(super) async fn unpack(
    client: Option<&RegistryClient>,
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    limits: &Limits,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<PulledImage, PullError> {
    let reference = &image.reference;
    if let Some(pulled) = usable(reference, image.digest(), store).await? {
        let named = name_again(image, pulled, store);
        return named.map_err(|source| PullError::Store {
            reference: reference.clone(),
            source,
        });
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
    let attempt = Attempt {
        client,
        image,
        store,
        limits,
        progress,
    };
    let mut fetched_anew = BTreeSet::new();
    loop {
        let failure = match attempt.run().await {
            Ok(pulled) => return Ok(pulled),
            Err(failure) => failure,
        };
        // Each layer once: a disk that damages all that it holds must not keep a registry busy.
        match failure.damaged {
            Some(layer) if fetched_anew.insert(layer) => {
                tracing::warn!("{reference}: the layer {layer} is fetched once more");
            }
            _ => return Err(failure.error),
        }
    }
}

/// An image of the store whose files are as they were unpacked. A damaged one is removed, with a line in the log.
pub(super) async fn usable(
    name: &ImageReference,
    digest: Digest,
    store: &ImageStore,
) -> Result<Option<PulledImage>, PullError> {
    let stored = |source| PullError::Store {
        reference: name.clone(),
        source,
    };
    // Held before the look: what was found whole cannot be removed.
    let image = store.get(digest);
    let checker = store.clone();
    let checked = blocking_io::to_its_end(move || checker.check(digest)).await;
    let checked = checked.map_err(|source| PullError::Interrupted {
        reference: name.clone(),
        source,
    })?;
    match checked.map_err(stored)? {
        Wholeness::Whole => Ok(image.or_else(|| store.get(digest))),
        Wholeness::Absent => Ok(None),
        Wholeness::Damaged(how) => {
            tracing::error!(
                "{name}: the image {digest} is damaged on the disk and is removed: {how}"
            );
            store.remove_damaged(digest).await.map_err(stored)?;
            Ok(None)
        }
    }
}

/// Gives an image that the store has already its new name, and the signature that it was verified by now.
fn name_again(
    image: &Verified<ResolvedImage>,
    pulled: PulledImage,
    store: &ImageStore,
) -> Result<PulledImage, StoreError> {
    if let Some(proof) = image.proof() {
        store.keep_proof(&pulled, proof)?;
    }
    store.add_name(pulled, &image.reference)
}
