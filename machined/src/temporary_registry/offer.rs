//! The content of the temporary registry: some images of the store, and nothing else of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::blob::Compared;
use crate::oci::local_image::{self, LocalImageError};
use crate::oci::verification::KeptSignatures;
use crate::oci::{Blobs, HeldBlobs, PulledImage, ResolvedImage};
use crate::values::{Digest, ImageReference};

/// Why an image cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum NotServable {
    /// Its documents are not among the blobs.
    #[error("{image} cannot be served")]
    Documents {
        /// The image.
        image: Box<ImageReference>,
        /// The cause.
        source: LocalImageError,
    },
    /// A layer is not among the blobs.
    #[error(
        "{image} cannot be served: its layer {layer} is not kept; pin the image, so that it is fetched with its blobs"
    )]
    Layer {
        /// The image.
        image: Box<ImageReference>,
        /// The layer.
        layer: Digest,
    },
}

/// The meaning of a tag that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tagged {
    /// This document.
    Document(Digest),
    /// Images of these registries, and the client did not say of which one.
    Several(Vec<String>),
    /// Nothing that is served.
    Nothing,
}

/// The images that are served. None of them is collected while this value exists.
#[derive(Debug)]
pub struct Offer {
    /// The documents behind repository and tag, by the registry that the image is of.
    tags: BTreeMap<(String, String), BTreeMap<String, Digest>>,
    /// The documents behind the tags of signatures.
    signatures: BTreeMap<(String, String), Digest>,
    /// Documents that the store does not have as blobs: signatures, and the indexes that they sign.
    documents: BTreeMap<Digest, Bytes>,
    manifests: BTreeSet<Digest>,
    blobs: BTreeSet<Digest>,
    store: Blobs,
    /// Whether each repository's path begins with the name of its registry, so that no image is taken for that of another registry.
    by_registry: bool,
    compared: Compared,
    _held: (Vec<PulledImage>, Vec<HeldBlobs>),
}

impl Offer {
    /// Offers nothing yet.
    pub fn of(store: Blobs) -> Self {
        Offer {
            tags: BTreeMap::new(),
            signatures: BTreeMap::new(),
            documents: BTreeMap::new(),
            manifests: BTreeSet::new(),
            blobs: BTreeSet::new(),
            store,
            by_registry: false,
            compared: Compared::default(),
            _held: Default::default(),
        }
    }

    /// The same, with the name of its registry before each repository.
    pub fn by_registry(store: Blobs) -> Self {
        Offer {
            by_registry: true,
            ..Self::of(store)
        }
    }

    /// Adds an image under all its names, with the signatures that are kept with it. Reads its documents.
    ///
    /// # Errors
    /// Some of its blobs are not here.
    pub fn add(&mut self, name: &ImageReference, image: PulledImage) -> Result<(), NotServable> {
        let resolved = self.resolve(name, &image)?;
        // Before the look: what was found is not collected after it.
        let held = self.store.hold(resolved.blobs());
        for layer in &resolved.layers {
            if !matches!(self.store.open(layer.digest), Ok(Some(_))) {
                return Err(NotServable::Layer {
                    image: Box::new(name.clone()),
                    layer: layer.digest,
                });
            }
        }
        let config = Digest::of(&resolved.config_document);
        self.manifests
            .extend([resolved.digest, resolved.named_digest]);
        self.blobs.insert(config);
        self.blobs
            .extend(resolved.layers.iter().map(|it| it.digest));
        let kept = KeptSignatures::of(&image);
        // The name may have pointed to an index that is not kept. It is what was signed, so the image is served by it.
        let index = kept.signed_index.filter(|_| resolved.index.is_none());
        let named = index.unwrap_or(resolved.named_digest);
        for name in image.names().iter().chain([name]) {
            let repository = match self.by_registry {
                true => format!("{}/{}", name.registry(), name.repository()),
                false => name.repository().to_owned(),
            };
            let key = |tag: &str| (repository.clone(), tag.to_owned());
            if let Some(tag) = name.tag() {
                let tagged = self.tags.entry(key(tag)).or_default();
                tagged.insert(name.registry().to_owned(), named);
            }
            let signatures = kept.tags.iter();
            let signatures = signatures.map(|(tag, digest)| (key(tag), *digest));
            self.signatures.extend(signatures);
        }
        self.blobs.extend(kept.documents.keys());
        self.manifests.extend(kept.manifests);
        let documents = kept.documents.into_iter();
        let documents = documents.map(|(digest, bytes)| (digest, bytes.into()));
        self.documents.extend(documents);
        self._held.0.push(image);
        self._held.1.push(held);
        Ok(())
    }

    /// Resolves an image from its blobs: by its index if that is kept, else by its manifest.
    fn resolve(
        &self,
        name: &ImageReference,
        image: &PulledImage,
    ) -> Result<ResolvedImage, NotServable> {
        let by = |digest| local_image::resolve(&self.store, name, digest);
        let resolved = by(image.named_digest()).or_else(|_| by(image.digest()));
        resolved.map_err(|source| NotServable::Documents {
            image: Box::new(name.clone()),
            source,
        })
    }

    /// The store of blobs.
    pub(super) fn store(&self) -> &Blobs {
        &self.store
    }

    /// The blobs that were compared since it is served.
    pub(super) fn compared(&self) -> &Compared {
        &self.compared
    }

    /// The meaning of a tag. `registry` is the one that the client wants an image of, if it says so.
    pub(super) fn tag(&self, repository: String, tag: String, registry: Option<&str>) -> Tagged {
        let key = (repository, tag);
        let Some(tagged) = self.tags.get(&key) else {
            // The tag of a signature has the digest of its image in it, whatever the registry.
            let signature = self.signatures.get(&key).copied();
            return signature.map_or(Tagged::Nothing, Tagged::Document);
        };
        // The path says it already.
        let registry = registry.filter(|_| !self.by_registry);
        if let Some(registry) = registry {
            let found = tagged.get(registry).copied();
            return found.map_or(Tagged::Nothing, Tagged::Document);
        }
        let documents: BTreeSet<Digest> = tagged.values().copied().collect();
        match (documents.first(), documents.len()) {
            (Some(document), 1) => Tagged::Document(*document),
            _ => Tagged::Several(tagged.keys().cloned().collect()),
        }
    }

    /// The tags of a repository, those of signatures too.
    pub(super) fn tags(&self, repository: &str) -> Vec<&str> {
        let keys = self.tags.keys().chain(self.signatures.keys());
        let of_it = keys.filter(|(other, _)| other == repository);
        of_it.map(|(_, tag)| tag.as_str()).collect()
    }

    /// A document that the store does not have as a blob.
    pub(super) fn document(&self, digest: Digest) -> Option<Bytes> {
        self.documents.get(&digest).cloned()
    }

    /// Whether a document is offered.
    pub(super) fn has_manifest(&self, digest: Digest) -> bool {
        self.manifests.contains(&digest)
    }

    /// Whether a config or a layer is offered.
    pub(super) fn has_blob(&self, digest: Digest) -> bool {
        self.blobs.contains(&digest) || self.manifests.contains(&digest)
    }

    /// The names of the images, as `REPOSITORY:TAG`; with the registry in front if several have an image of that name.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for ((repository, tag), tagged) in &self.tags {
            match tagged.len() {
                1 => names.push(format!("{repository}:{tag}")),
                _ => names.extend(tagged.keys().map(|of| format!("{of}/{repository}:{tag}"))),
            }
        }
        names
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self._held.0.len()
    }

    /// Whether nothing is offered.
    pub fn is_empty(&self) -> bool {
        self._held.0.is_empty()
    }
}
