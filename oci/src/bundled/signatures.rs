//! Searches one registry for all signatures of an image, in the places of [`verification`](crate::verification), and judges none of them.

use std::collections::BTreeMap;

use instar_bundle::{Document, Signature};
use instar_values::{Digest, ImageReference};
use serde::Deserialize;

use crate::registries::Endpoint;
use crate::registry::{LARGEST_DOCUMENT, RegistryClient, RequestError};
use crate::verification::places;

/// Limit on the manifests of signatures of one image or index: anyone who may push can add signatures.
const MOST_MANIFESTS: usize = 100;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The signatures that were found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) signatures: Vec<Signature>,
    pub(super) documents: BTreeMap<Digest, Vec<u8>>,
}

/// A search at one endpoint.
pub(super) struct Search<'a> {
    client: &'a RegistryClient,
    endpoint: &'a Endpoint,
    reference: &'a ImageReference,
    found: Found,
}

/// A manifest with signatures as layers, or an index of such manifests.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    #[serde(default)]
    manifests: Vec<Entry>,
    config: Option<Entry>,
    #[serde(default)]
    layers: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    artifact_type: Option<String>,
    digest: Digest,
    size: u64,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        client: &'a RegistryClient,
        endpoint: &'a Endpoint,
        reference: &'a ImageReference,
    ) -> Self {
        Search {
            client,
            endpoint,
            reference,
            found: Found::default(),
        }
    }

    /// Searches for the signatures of these images and indexes.
    pub(super) async fn run(
        mut self,
        subjects: impl Iterator<Item = Digest>,
    ) -> Result<Found, RequestError> {
        for subject in subjects {
            for place in places::of_bundles(subject) {
                self.bundles(subject, &place).await?;
            }
            let tag = places::tag_of_payloads(subject);
            if let Some(manifest) = self.document(&format!("manifests/{tag}"), None).await? {
                let found_at = self.named(&tag);
                self.keep(subject, found_at, manifest).await?;
            }
        }
        Ok(self.found)
    }

    /// Keeps the bundles of a list of manifests, or of a manifest.
    async fn bundles(&mut self, subject: Digest, place: &str) -> Result<(), RequestError> {
        let Some(bytes) = self.document(place, None).await? else {
            return Ok(());
        };
        let listing: Listing = serde_json::from_slice(&bytes).unwrap_or_default();
        if !listing.layers.is_empty() {
            let found_at = Some(self.reference.at(Digest::of(&bytes)));
            self.keep(subject, found_at, bytes).await?;
        }
        let entries = listing.manifests.iter();
        let entries = entries.filter(|it| places::may_hold_bundle(it.artifact_type.as_deref()));
        for entry in entries.take(MOST_MANIFESTS) {
            let place = format!("manifests/{}", entry.digest);
            if let Some(manifest) = self.document(&place, Some(entry)).await? {
                let found_at = Some(self.reference.at(entry.digest));
                self.keep(subject, found_at, manifest).await?;
            }
        }
        Ok(())
    }

    /// Keeps a manifest with all that it names, if it holds signatures. Documents that are too large or not there hold none.
    async fn keep(
        &mut self,
        subject: Digest,
        found_at: Option<ImageReference>,
        bytes: Vec<u8>,
    ) -> Result<(), RequestError> {
        let listing: Listing = serde_json::from_slice(&bytes).unwrap_or_default();
        let layers = || listing.layers.iter();
        let holds_any = layers().any(|layer| places::is_signature(&layer.media_type));
        let (Some(config), Some(found_at), true) = (&listing.config, found_at, holds_any) else {
            return Ok(());
        };
        let mut documents = BTreeMap::new();
        for entry in layers().chain([config]) {
            let place = format!("blobs/{}", entry.digest);
            let Some(document) = self.document(&place, Some(entry)).await? else {
                return Ok(());
            };
            documents.insert(entry.digest, document);
        }
        let manifest = Document {
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            media_type: MANIFEST.to_owned(),
        };
        documents.insert(manifest.digest, bytes);
        self.found.documents.extend(documents);
        self.found.signatures.push(Signature {
            subject,
            found_at,
            manifest,
        });
        Ok(())
    }

    /// The image's repository with another tag.
    fn named(&self, tag: &str) -> Option<ImageReference> {
        let (registry, repository) = (self.reference.registry(), self.reference.repository());
        format!("{registry}/{repository}:{tag}").parse().ok()
    }

    /// Gets a document, which has to be the one that the entry names; `None` if there is none, or it is larger than the limit.
    async fn document(
        &self,
        place: &str,
        entry: Option<&Entry>,
    ) -> Result<Option<Vec<u8>>, RequestError> {
        if entry.is_some_and(|entry| entry.size > LARGEST_DOCUMENT) {
            return Ok(None);
        }
        let path = format!("{}/{place}", self.reference.repository());
        let (accept, limit) = (places::ACCEPT, LARGEST_DOCUMENT);
        let answer = self
            .client
            .bounded_document(self.endpoint, self.reference, &path, accept, limit)
            .await;
        match answer {
            Ok(document) => {
                let (digest, size) = (entry.map(|it| it.digest), entry.map(|it| it.size));
                document.check("a signature's document", digest, size)?;
                Ok(Some(document.bytes))
            }
            Err(error) if places::is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
