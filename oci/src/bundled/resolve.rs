//! Resolves an image of a bundle, as a registry would.

use std::io;

use instar_bundle::{Image, VerifiedBundle};

use crate::manifest::{Manifest, ManifestError};
use crate::registry::{ImageDocuments, ResolvedImage};

/// Why an image of a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundledImageError {
    /// The bundle cannot be read any more.
    #[error("the bundle cannot be read any more")]
    Read(#[from] io::Error),
    /// The image's documents are of no use.
    #[error("{reference} cannot be used")]
    Manifest {
        /// The image.
        reference: Box<instar_values::ImageReference>,
        /// The fault in its documents.
        source: ManifestError,
    },
    /// The manifest is an index.
    #[error("{0} is an index and no image")]
    Nested(Box<instar_values::ImageReference>),
}

/// Resolves an image of a bundle.
///
/// # Errors
/// The image is not for this machine, its documents are of no use, or the bundle cannot be read any more.
pub fn resolve(bundle: &VerifiedBundle, image: &Image) -> Result<ResolvedImage, BundledImageError> {
    let reference = || Box::new(image.reference.clone());
    let bad = |source| BundledImageError::Manifest {
        reference: reference(),
        source,
    };
    let manifest = bundle.document(image.manifest.digest)?;
    let Manifest::Image { config, layers } = Manifest::parse(&manifest, None).map_err(bad)? else {
        return Err(BundledImageError::Nested(reference()));
    };
    let index = image.index.map(|index| bundle.document(index));
    let documents = ImageDocuments {
        named_digest: image.named_digest(),
        digest: image.manifest.digest,
        index: index.transpose()?,
        manifest,
        config: bundle.document(config.digest)?,
    };
    ResolvedImage::read(image.reference.clone(), documents, &layers).map_err(bad)
}
