//! Unpacks an image of a bundle into the store.

use std::io;

use instar_base::blocking_io::{self, NoAnswer};
use instar_bundle::VerifiedBundle;
use instar_values::{Digest, ImageReference};

use crate::pull::{already_here, ownership};
use crate::registry::ResolvedImage;
use crate::store::{ImageStore, Incoming, NewImage, PulledImage, StoreError};
use crate::unpack::{Limits, UnpackError, Unpacker};
use crate::verification::{Verified, VerifiedImage};

/// Why an image of a bundle is not in the store.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A layer cannot be read any more.
    #[error("the layer {layer} of {image} cannot be read from the bundle any more")]
    Read {
        /// The image.
        image: Box<ImageReference>,
        /// The layer's blob.
        layer: Digest,
        /// The error.
        source: io::Error,
    },
    /// A layer is damaged or hostile.
    #[error("layer {layer} of {image} is not taken")]
    Layer {
        /// The image.
        image: Box<ImageReference>,
        /// The layer's blob.
        layer: Digest,
        /// The cause.
        source: Box<UnpackError>,
    },
    /// The store failed.
    #[error("{image} cannot be stored")]
    Store {
        /// The image.
        image: Box<ImageReference>,
        /// The cause.
        source: StoreError,
    },
    /// The thread that unpacks ended without a result.
    #[error("unpacking was interrupted")]
    Interrupted(#[from] NoAnswer),
}

/// Unpacks an image of a bundle into the store under its reference, unless it is there. No registry is asked.
///
/// # Errors
/// The bundle has changed since it was verified, a layer is not taken, or the store fails. Nothing of the image is left then.
pub async fn import(
    bundle: &VerifiedBundle,
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    limits: &Limits,
) -> Result<VerifiedImage, ImportError> {
    let stored = |source| ImportError::Store {
        image: Box::new(image.reference.clone()),
        source,
    };
    if let Some(here) = already_here(image, store).map_err(stored)? {
        return Ok(image.same_image(here));
    }
    let unpacking = {
        let (bundle, image) = (bundle.clone(), image.clone());
        let (store, limits) = (store.clone(), *limits);
        blocking_io::to_its_end(move || unpack(&bundle, &image, &store, &limits))
    };
    Ok(image.same_image(unpacking.await??))
}

fn unpack(
    bundle: &VerifiedBundle,
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    limits: &Limits,
) -> Result<PulledImage, ImportError> {
    let name = || Box::new(image.reference.clone());
    let stored = |source| ImportError::Store {
        image: name(),
        source,
    };
    let refused = |layer, source| ImportError::Layer {
        image: name(),
        layer,
        source: Box::new(source),
    };
    let incoming = store.incoming(image.digest()).map_err(stored)?;
    let mut unpacker = Unpacker::new(&incoming.rootfs(), *limits, ownership())
        .map_err(|source| refused(image.digest(), source))?;
    for layer in &image.layers {
        let blob = bundle.blob(layer.digest);
        let blob = blob.map_err(|source| ImportError::Read {
            image: name(),
            layer: layer.digest,
            source,
        })?;
        let unpacked = unpacker.layer(layer, blob);
        unpacked.map_err(|source| refused(layer.digest, source))?;
    }
    if let Some(devices) = unpacker.left_out() {
        tracing::warn!("{}: {devices}", image.reference);
    }
    let unpacked_bytes = unpacker.bytes();
    commit(incoming, image, store, unpacked_bytes).map_err(stored)
}

/// Makes an unpacked image one of the store, with its proof. Blocks until it is on the disk.
fn commit(
    incoming: Incoming,
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    unpacked_bytes: u64,
) -> Result<PulledImage, StoreError> {
    if let Some(proof) = image.proof() {
        incoming.keep_proof(proof)?;
    }
    let pulled = incoming.commit(NewImage {
        name: image.reference.clone(),
        named_digest: image.named_digest,
        config: image.config.clone(),
        download_bytes: image.download_bytes(),
        unpacked_bytes,
    })?;
    // A pull of the same image may have been faster, under another policy.
    if let Some(proof) = image.proof() {
        store.keep_proof(&pulled, proof)?;
    }
    Ok(pulled)
}
