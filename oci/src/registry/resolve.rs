//! From the name of an image to everything about it but the content of its layers: its manifest and its config are read and checked.

use std::collections::BTreeMap;

use tokio::time::timeout;

use instar_values::Digest;
use instar_values::ImageReference;

use super::RegistryClient;
use super::error::{RegistryError, RequestError};
use super::limits::{LARGEST_DOCUMENT, RESOLVE};
use crate::manifest::{self, ImageConfig, Layer, MANIFEST_MEDIA_TYPES, Manifest};
use crate::registries::Endpoint;

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

impl ResolvedImage {
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

/// A manifest, its digest, and its bytes.
pub(crate) struct NamedManifest {
    pub(crate) manifest: Manifest,
    digest: Digest,
    pub(crate) bytes: Vec<u8>,
}

impl RegistryClient {
    /// Resolves a name. Only manifest and config are transferred.
    pub async fn resolve(
        &self,
        reference: &ImageReference,
    ) -> Result<ResolvedImage, RegistryError> {
        let mut round = self.round(reference);
        while let Some(turn) = round.turn() {
            let resolved = timeout(RESOLVE, self.resolve_at(&turn.endpoint, reference)).await;
            match resolved.unwrap_or(Err(RequestError::Late)) {
                Ok(image) => return Ok(image),
                Err(error) => _ = round.failed(turn, error),
            }
        }
        Err(RegistryError {
            reference: reference.clone(),
            tried: round.into_tried(),
        })
    }

    async fn resolve_at(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
    ) -> Result<ResolvedImage, RequestError> {
        let selector = reference.selector();
        let named = self
            .manifest(endpoint, reference, &selector, reference.digest(), None)
            .await?;
        let named_digest = named.digest;
        let (ours, index) = match named.manifest {
            Manifest::Image { .. } => (named, None),
            Manifest::Index(manifests) => {
                let ours = manifest::select(manifests)?;
                let (digest, size) = (Some(ours.digest), Some(ours.size));
                let ours = self
                    .manifest(endpoint, reference, &ours.digest.to_string(), digest, size)
                    .await?;
                (ours, Some(named.bytes))
            }
        };
        let NamedManifest {
            manifest,
            digest,
            bytes,
        } = ours;
        let Manifest::Image { config, layers } = manifest else {
            return Err(RequestError::Nested);
        };
        if config.size > LARGEST_DOCUMENT {
            return Err(RequestError::TooLarge {
                what: "config",
                size: config.size,
            });
        }
        let path = format!("{}/blobs/{}", reference.repository(), config.digest);
        let document = self.document(endpoint, reference, &path, "*/*").await?;
        document.check("a config", Some(config.digest), Some(config.size))?;
        let (config, layers) = manifest::image(&document.bytes, &layers)?;
        Ok(ResolvedImage {
            reference: reference.clone(),
            digest,
            named_digest,
            config,
            layers,
            index,
            manifest: bytes,
            config_document: document.bytes,
        })
    }

    /// Gets a manifest by tag or digest.
    pub(crate) async fn manifest(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        selector: &str,
        digest: Option<Digest>,
        size: Option<u64>,
    ) -> Result<NamedManifest, RequestError> {
        let path = format!("{}/manifests/{selector}", reference.repository());
        let document = self
            .document(endpoint, reference, &path, MANIFEST_MEDIA_TYPES)
            .await?;
        let digest = document.check("a manifest", digest, size)?;
        let manifest = Manifest::parse(&document.bytes, document.content_type.as_deref())?;
        Ok(NamedManifest {
            manifest,
            digest,
            bytes: document.bytes,
        })
    }
}
