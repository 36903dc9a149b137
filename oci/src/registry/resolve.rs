//! From the name of an image to everything about it but the content of its layers: its manifest and its config are read and checked.

use tokio::time::timeout;

use instar_values::Digest;
use instar_values::ImageReference;

use super::RegistryClient;
use super::document::DocumentRequest;
use super::error::{RegistryError, RequestError};
use super::limits::{LARGEST_DOCUMENT, RESOLVE};
use super::resolved_image::{ImageDocuments, ResolvedImage};
use crate::manifest::{Descriptor, MANIFEST_MEDIA_TYPES, Manifest, PLATFORM, Platform, select_for};
use crate::registries::Endpoint;

/// A manifest, its digest, and its bytes.
struct NamedManifest {
    manifest: Manifest,
    digest: Digest,
    bytes: Vec<u8>,
}

/// The manifest of an image for one platform.
pub(crate) struct ImageManifest {
    pub(crate) config: Descriptor,
    layers: Vec<Descriptor>,
    digest: Digest,
    /// The manifest as the registry serves it.
    pub(crate) bytes: Vec<u8>,
    /// The digest of the document that the name points to.
    named_digest: Digest,
    /// The index that the name points to, if it points to one.
    pub(crate) index: Option<Vec<u8>>,
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
        let manifest = self.image_manifest(endpoint, reference, PLATFORM).await?;
        let config = self.config(endpoint, reference, &manifest.config).await?;
        let documents = ImageDocuments {
            named_digest: manifest.named_digest,
            digest: manifest.digest,
            index: manifest.index,
            manifest: manifest.bytes,
            config,
        };
        let layers = &manifest.layers;
        Ok(ResolvedImage::read(reference.clone(), documents, layers)?)
    }

    /// Gets the manifest of an image for a platform.
    pub(crate) async fn image_manifest(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        platform: Platform<'_>,
    ) -> Result<ImageManifest, RequestError> {
        let selector = reference.selector();
        let named = self
            .manifest(endpoint, reference, &selector, reference.digest(), None)
            .await?;
        let named_digest = named.digest;
        let (ours, index) = match named.manifest {
            Manifest::Image { .. } => (named, None),
            Manifest::Index(manifests) => {
                let ours = select_for(manifests, platform)?;
                let (digest, size) = (Some(ours.digest), Some(ours.size));
                let ours = self
                    .manifest(endpoint, reference, &ours.digest.to_string(), digest, size)
                    .await?;
                (ours, Some(named.bytes))
            }
        };
        let Manifest::Image { config, layers } = ours.manifest else {
            return Err(RequestError::Nested);
        };
        Ok(ImageManifest {
            config,
            layers,
            digest: ours.digest,
            bytes: ours.bytes,
            named_digest,
            index,
        })
    }

    /// Gets the config of an image.
    pub(crate) async fn config(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        config: &Descriptor,
    ) -> Result<Vec<u8>, RequestError> {
        if config.size > LARGEST_DOCUMENT {
            return Err(RequestError::TooLarge {
                what: "config",
                size: config.size,
            });
        }
        let request = DocumentRequest {
            endpoint,
            reference,
            place: &format!("blobs/{}", config.digest),
            accept: "*/*",
            limit: LARGEST_DOCUMENT,
        };
        let document = self.document(request).await?;
        document.check("a config", Some(config.digest), Some(config.size))?;
        Ok(document.bytes)
    }

    /// Gets a manifest by tag or digest.
    async fn manifest(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        selector: &str,
        digest: Option<Digest>,
        size: Option<u64>,
    ) -> Result<NamedManifest, RequestError> {
        let request = DocumentRequest {
            endpoint,
            reference,
            place: &format!("manifests/{selector}"),
            accept: MANIFEST_MEDIA_TYPES,
            limit: LARGEST_DOCUMENT,
        };
        let document = self.document(request).await?;
        let digest = document.check("a manifest", digest, size)?;
        let manifest = Manifest::parse(&document.bytes, document.content_type.as_deref())?;
        Ok(NamedManifest {
            manifest,
            digest,
            bytes: document.bytes,
        })
    }
}
