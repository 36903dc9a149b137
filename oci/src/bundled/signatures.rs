//! Searches one registry for all signatures of an image, in the places of [`verification`](crate::verification), and judges none of them.

use std::collections::{BTreeMap, BTreeSet};

use instar_bundle::{Document, Signature};
use instar_values::{Digest, ImageReference};

use crate::registries::Endpoint;
use crate::registry::{self, DocumentRequest, LARGEST_DOCUMENT, RegistryClient, RequestError};
use crate::verification::listing::{Entry, Listing};
use crate::verification::pages::Pages;
use crate::verification::places;

/// Limit on the signatures of one image or index that are kept: anyone who may push can add signatures.
const MOST_KEPT: usize = 100;
/// Limit on the manifests in lists of one image or index that are looked at for signatures: as many as a machine looks at.
const MOST_LOOKED_AT: usize = 250;
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
    /// The manifests of lists that were looked at for the present image or index.
    seen: BTreeSet<Digest>,
    /// The number of its signatures.
    kept: usize,
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
            seen: BTreeSet::new(),
            kept: 0,
        }
    }

    /// Searches for the signatures of these images and indexes.
    pub(super) async fn run(
        mut self,
        subjects: impl Iterator<Item = Digest>,
    ) -> Result<Found, RequestError> {
        for subject in subjects {
            (self.seen, self.kept) = (BTreeSet::new(), 0);
            let [referrers, tag] = places::of_bundles(subject);
            for mut pages in Pages::of(&referrers) {
                while let Some(place) = pages.next_place() {
                    if let Some(page) = self.document(&place, None).await? {
                        pages.came(&page);
                        self.bundles(subject, page.bytes).await?;
                    }
                }
            }
            if let Some(document) = self.document(&tag, None).await? {
                self.bundles(subject, document.bytes).await?;
            }
            let tag = places::tag_of_payloads(subject);
            if let Some(manifest) = self.document(&format!("manifests/{tag}"), None).await? {
                let found_at = self.named(&tag);
                self.keep(subject, found_at, manifest.bytes).await?;
            }
        }
        Ok(self.found)
    }

    /// Keeps the bundles of a list of manifests, or of a manifest.
    async fn bundles(&mut self, subject: Digest, bytes: Vec<u8>) -> Result<(), RequestError> {
        let listing: Listing = serde_json::from_slice(&bytes).unwrap_or_default();
        if !listing.layers.is_empty() {
            let found_at = Some(self.reference.at(Digest::of(&bytes)));
            self.keep(subject, found_at, bytes).await?;
        }
        let entries = listing.manifests.iter();
        for entry in entries.filter(|it| it.may_hold_bundle()) {
            if self.seen.len() == MOST_LOOKED_AT || !self.seen.insert(entry.digest) {
                continue;
            }
            let place = format!("manifests/{}", entry.digest);
            if let Some(manifest) = self.document(&place, Some(entry)).await? {
                let found_at = Some(self.reference.at(entry.digest));
                self.keep(subject, found_at, manifest.bytes).await?;
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
        let is_wanted = holds_any && self.kept < MOST_KEPT;
        let (Some(config), Some(found_at), true) = (&listing.config, found_at, is_wanted) else {
            return Ok(());
        };
        let mut documents = BTreeMap::new();
        for entry in layers().chain([config]) {
            let place = format!("blobs/{}", entry.digest);
            let Some(document) = self.document(&place, Some(entry)).await? else {
                return Ok(());
            };
            documents.insert(entry.digest, document.bytes);
        }
        let manifest = Document {
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            media_type: MANIFEST.to_owned(),
        };
        documents.insert(manifest.digest, bytes);
        self.kept += 1;
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
    ) -> Result<Option<registry::Document>, RequestError> {
        if entry.is_some_and(|entry| entry.size > LARGEST_DOCUMENT) {
            return Ok(None);
        }
        let request = DocumentRequest {
            endpoint: self.endpoint,
            reference: self.reference,
            place,
            accept: places::ACCEPT,
            limit: LARGEST_DOCUMENT,
        };
        match self.client.document(request).await {
            Ok(document) => {
                let (digest, size) = (entry.map(|it| it.digest), entry.map(|it| it.size));
                document.check("a signature's document", digest, size)?;
                Ok(Some(document))
            }
            Err(error) if places::is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
