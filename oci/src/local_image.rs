//! Resolves an image from the store's blobs, as a registry would: its documents are read and checked again.

use std::collections::BTreeSet;

use crate::blobs::Blobs;
use crate::manifest::{self, Manifest, ManifestError};
use crate::registry::{ImageDocuments, LARGEST_DOCUMENT, ResolvedImage};
use crate::store_error::StoreError;
use instar_values::{Digest, ImageReference};
use serde::Deserialize;

/// Why the store's blobs make no image.
#[derive(Debug, thiserror::Error)]
pub enum LocalImageError {
    /// The file system failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document is not here, or is larger than the limit.
    #[error("the {what} {digest} is not in the store")]
    Missing {
        /// The kind of document.
        what: &'static str,
        /// Its digest.
        digest: Digest,
    },
    /// The document is readable, but of no use.
    #[error("the image cannot be used")]
    Manifest(#[from] ManifestError),
    /// An index refers to another index.
    #[error("the index points to another index")]
    Nested,
}

/// Resolves the image that this digest, of an index or of a manifest, means. Its layers need not be here.
///
/// # Errors
/// A document is missing, damaged or of no use.
pub fn resolve(
    blobs: &Blobs,
    reference: &ImageReference,
    named_digest: Digest,
) -> Result<ResolvedImage, LocalImageError> {
    let named = document(blobs, "manifest", named_digest)?;
    let (digest, manifest, index) = match Manifest::parse(&named, None)? {
        Manifest::Image { .. } => (named_digest, named, None),
        Manifest::Index(entries) => {
            let ours = manifest::select(entries)?.digest;
            (ours, document(blobs, "manifest", ours)?, Some(named))
        }
    };
    let Manifest::Image { config, layers } = Manifest::parse(&manifest, None)? else {
        return Err(LocalImageError::Nested);
    };
    let documents = ImageDocuments {
        named_digest,
        digest,
        index,
        manifest,
        config: document(blobs, "config", config.digest)?,
    };
    Ok(ResolvedImage::read(reference.clone(), documents, &layers)?)
}

/// The blobs that a manifest names, whatever it is the manifest of: the store also keeps files that are no images.
#[derive(Deserialize)]
struct Named {
    config: NamedBlob,
    layers: Vec<NamedBlob>,
}

#[derive(Deserialize)]
struct NamedBlob {
    digest: Digest,
}

/// The blobs that the manifest of this digest names; none if it is not here.
pub(crate) fn blobs_named_by(
    blobs: &Blobs,
    manifest: Digest,
) -> Result<BTreeSet<Digest>, StoreError> {
    let manifest = blobs.document(manifest, LARGEST_DOCUMENT)?;
    let parsed = manifest.and_then(|manifest| serde_json::from_slice(&manifest).ok());
    let Some(Named { config, layers }) = parsed else {
        return Ok(BTreeSet::new());
    };
    let layers = layers.iter().map(|layer| layer.digest);
    Ok(layers.chain([config.digest]).collect())
}

/// The digests of the unpacked layers of the image with this manifest, lowest first; none if its documents are not here.
pub(crate) fn layers_of(blobs: &Blobs, manifest: Digest) -> Vec<Digest> {
    let read = || {
        let manifest = document(blobs, "manifest", manifest)?;
        let Manifest::Image { config, layers } = Manifest::parse(&manifest, None)? else {
            return Err(LocalImageError::Nested);
        };
        let config = document(blobs, "config", config.digest)?;
        let (config, _) = manifest::image(&config, &layers)?;
        Ok(config.layers)
    };
    read().unwrap_or_default()
}

fn document(blobs: &Blobs, what: &'static str, digest: Digest) -> Result<Vec<u8>, LocalImageError> {
    let document = blobs.document(digest, LARGEST_DOCUMENT)?;
    document.ok_or(LocalImageError::Missing { what, digest })
}
