//! A resolved image, read from its documents: those of a registry, of a bundle or of the store.

use std::collections::BTreeMap;

use instar_values::Digest;
use instar_values::ImageReference;

use crate::manifest::{self, Descriptor, ImageConfig, Layer, ManifestError};

/// A resolved image: everything about it but the content of its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedImage {
    /// The name.
    pub reference: ImageReference,
    /// The digest of the image's manifest for this platform.
    pub digest: Digest,
    /// The digest of the document that the name points to: the index where there is one. People pin and sign this one.
    pub named_digest: Digest,
    /// The settings for running it, and its labels.
    pub config: ImageConfig,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
    /// The index that the name points to, as the registry serves it: where the index is signed, it leads from the signature to the image.
    pub index: Option<Vec<u8>>,
    /// The image's manifest, as the registry serves it.
    pub manifest: Vec<u8>,
    /// The image's config, as the registry serves it.
    pub config_document: Vec<u8>,
}

/// The documents of an image, each compared with its digest.
pub(crate) struct ImageDocuments {
    /// The digest of the document that the name points to.
    pub(crate) named_digest: Digest,
    /// The digest of the manifest.
    pub(crate) digest: Digest,
    /// The index that the name points to, if it points to one.
    pub(crate) index: Option<Vec<u8>>,
    pub(crate) manifest: Vec<u8>,
    pub(crate) config: Vec<u8>,
}

impl ResolvedImage {
    /// Reads an image from its documents; `layers` are those of its manifest.
    ///
    /// # Errors
    /// The config cannot be read, is not for this machine, or does not fit the manifest.
    pub(crate) fn read(
        reference: ImageReference,
        documents: ImageDocuments,
        layers: &[Descriptor],
    ) -> Result<Self, ManifestError> {
        let (config, layers) = manifest::image(&documents.config, layers)?;
        Ok(ResolvedImage {
            reference,
            digest: documents.digest,
            named_digest: documents.named_digest,
            config,
            layers,
            index: documents.index,
            manifest: documents.manifest,
            config_document: documents.config,
        })
    }

    /// The digest of the image's manifest for this platform: the key in the store.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The image's labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.config.labels
    }

    /// The blobs that the image is made from: its layers and its documents.
    pub fn blobs(&self) -> Vec<Digest> {
        let layers = self.layers.iter().map(|layer| layer.digest);
        let config = Digest::of(&self.config_document);
        layers
            .chain([self.digest, self.named_digest, config])
            .collect()
    }

    /// Size of all layers as they are transferred, in bytes.
    pub fn download_bytes(&self) -> u64 {
        self.layers
            .iter()
            .fold(0, |sum, layer| sum.saturating_add(layer.size))
    }
}
