//! Searches the registries of an image for a signature of it.
//!
//! Three places, in this order: the registry's list of referrers; the tag `sha256-X`, which holds the same where a registry has no such
//! list; and the tag `sha256-X.sig` of cosign's older form. X is the digest of the document that the name points to, and then that of the
//! image for this machine.

use std::collections::BTreeMap;

use instar_values::{Digest, ImageReference, PublicKey};
use serde::Deserialize;
use tokio::time::timeout;

use super::bundle;
use super::findings::{Findings, Subject};
use super::places;
use super::policy::RuleName;
use super::proof::Proof;
use super::refusal::VerificationError;
use super::signature::{NotASignature, Signature};
use super::simple_signing;
use crate::registries::Endpoint;
use crate::registry::{RESOLVE, RegistryClient, RegistryError, RequestError, ResolvedImage, Tried};

/// Size limit of manifests of signatures, in bytes.
const LARGEST_MANIFEST: u64 = 128 << 10;
/// Size limit of bundles and payloads, in bytes.
const LARGEST_DOCUMENT: u64 = 1 << 20;
/// Limit on the layers of one manifest, and on the manifests of one list, that are looked at.
const MOST_LAYERS: usize = 100;
/// Limit on the requests for one image at one endpoint: anyone who may push can add signatures.
const MOST_REQUESTS: usize = 250;

/// A manifest or an index of signatures. Registries keep both kinds under the same names.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    #[serde(default)]
    manifests: Vec<Entry>,
    #[serde(default)]
    layers: Vec<Entry>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    artifact_type: Option<String>,
    digest: Digest,
    size: u64,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl Entry {
    fn may_hold_bundle(&self) -> bool {
        places::may_hold_bundle(self.artifact_type.as_deref())
    }

    fn is_bundle(&self) -> bool {
        places::is_bundle(&self.media_type)
    }
}

impl RegistryClient {
    /// Finds a signature of an image by this key, and makes the proof that is kept with the image; without one, returns what was found.
    pub(super) async fn find_proof(
        &self,
        image: &ResolvedImage,
        rule: &RuleName,
        key: &PublicKey,
    ) -> Result<Result<Proof, Findings>, Box<VerificationError>> {
        let mut findings = Findings::default();
        let mut tried = Vec::new();
        for endpoint in self.endpoints(&image.reference) {
            let mut search = Search {
                client: self,
                endpoint: &endpoint,
                reference: &image.reference,
                subject: Subject {
                    image: image.digest(),
                    index: image.index.as_deref(),
                },
                key,
                findings: &mut findings,
                requests: 0,
                failed: None,
            };
            let found = timeout(RESOLVE, search.run()).await;
            let failed = search.failed.take();
            match found {
                Ok(Some(proof)) => return Ok(Ok(proof)),
                Ok(None) => tried.extend(failed.map(|error| (endpoint.to_string(), error))),
                Err(_) => tried.push((endpoint.to_string(), RequestError::Late)),
            }
        }
        if findings.is_empty() && !tried.is_empty() {
            return Err(Box::new(VerificationError::Registry {
                rule: rule.clone(),
                key: key.fingerprint(),
                source: RegistryError {
                    reference: image.reference.clone(),
                    tried: Tried(tried),
                },
            }));
        }
        Ok(Err(findings))
    }
}

/// A search at one endpoint.
struct Search<'a> {
    client: &'a RegistryClient,
    endpoint: &'a Endpoint,
    reference: &'a ImageReference,
    subject: Subject<'a>,
    key: &'a PublicKey,
    findings: &'a mut Findings,
    requests: usize,
    /// The first request that failed. The other places are looked at all the same.
    failed: Option<RequestError>,
}

impl Search<'_> {
    async fn run(&mut self) -> Option<Proof> {
        for digest in self.subject.digests() {
            for place in places::of_bundles(digest) {
                let listing = self.listing(&place, None).await;
                if let Some(proof) = self.bundles(listing.unwrap_or_default()).await {
                    return Some(proof);
                }
            }
            let listing = self
                .listing(
                    &format!("manifests/{}", places::tag_of_payloads(digest)),
                    None,
                )
                .await;
            if let Some(proof) = self.payloads(listing.unwrap_or_default()).await {
                return Some(proof);
            }
        }
        None
    }

    /// Looks at the bundles of a list of manifests, or of a manifest.
    async fn bundles(&mut self, listing: Listing) -> Option<Proof> {
        let mut layers = listing.layers;
        let manifests = listing.manifests.into_iter().take(MOST_LAYERS);
        for entry in manifests.filter(Entry::may_hold_bundle) {
            let place = format!("manifests/{}", entry.digest);
            let manifest = self.listing(&place, Some(&entry)).await;
            layers.extend(manifest.unwrap_or_default().layers);
        }
        let bundles = layers.into_iter().filter(Entry::is_bundle);
        for layer in bundles.take(MOST_LAYERS) {
            let Some(bundle) = self.blob(&layer).await else {
                continue;
            };
            let signatures = bundle::signatures(&bundle);
            for signature in self.readable(signatures).unwrap_or_default() {
                if let Some(proof) = self.judge(signature) {
                    return Some(proof);
                }
            }
        }
        None
    }

    /// Looks at the payloads of a manifest of cosign's older form.
    async fn payloads(&mut self, listing: Listing) -> Option<Proof> {
        let layers = listing.layers.into_iter().take(MOST_LAYERS);
        for layer in layers.filter(|layer| layer.media_type == simple_signing::LAYER_TYPE) {
            let annotations = layer.annotations.as_ref();
            let annotation = annotations.and_then(|it| it.get(simple_signing::ANNOTATION));
            let Some(annotation) = annotation else {
                self.findings.unreadable(&NotASignature::Bare);
                continue;
            };
            let Some(payload) = self.blob(&layer).await else {
                continue;
            };
            let signature = simple_signing::signature(payload, annotation);
            if let Some(signature) = self.readable(signature)
                && let Some(proof) = self.judge(signature)
            {
                return Some(proof);
            }
        }
        None
    }

    fn judge(&mut self, signature: Signature) -> Option<Proof> {
        self.findings.judge(signature, self.key, &self.subject)
    }

    fn readable<T>(&mut self, read: Result<T, NotASignature>) -> Option<T> {
        read.inspect_err(|error| self.findings.unreadable(error))
            .ok()
    }

    /// Gets a manifest or an index; None if there is none.
    async fn listing(&mut self, place: &str, entry: Option<&Entry>) -> Option<Listing> {
        let bytes = self.document(place, entry, LARGEST_MANIFEST).await?;
        let listing = serde_json::from_slice(&bytes);
        self.readable(listing.map_err(|source| NotASignature::Json {
            what: "manifest",
            source,
        }))
    }

    async fn blob(&mut self, layer: &Entry) -> Option<Vec<u8>> {
        let place = format!("blobs/{}", layer.digest);
        self.document(&place, Some(layer), LARGEST_DOCUMENT).await
    }

    /// Gets a document of at most `limit` bytes, which has to be the one that the entry names; None if there is none.
    async fn document(
        &mut self,
        place: &str,
        entry: Option<&Entry>,
        limit: u64,
    ) -> Option<Vec<u8>> {
        if let Some(size) = entry.map(|entry| entry.size).filter(|&size| size > limit) {
            self.findings
                .unreadable(&NotASignature::TooLarge { size, limit });
            return None;
        }
        if self.requests == MOST_REQUESTS {
            return None;
        }
        self.requests += 1;
        let path = format!("{}/{place}", self.reference.repository());
        let document = self
            .client
            .bounded_document(self.endpoint, self.reference, &path, places::ACCEPT, limit)
            .await
            .and_then(|document| {
                let (digest, size) = (entry.map(|it| it.digest), entry.map(|it| it.size));
                document.check("a signature's document", digest, size)?;
                Ok(document.bytes)
            });
        match document {
            Ok(bytes) => Some(bytes),
            Err(error) if places::is_absence(&error) => None,
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }
}
