//! Searches the registries of an image for a signature of it.
//!
//! Three places, in this order: the registry's list of referrers; the tag `sha256-X`, which holds the same where a registry has no such
//! list; and the tag `sha256-X.sig` of cosign's older form. X is the digest of the document that the name points to, and then that of the
//! image for this machine.

use std::collections::BTreeSet;

use instar_values::{Digest, ImageReference, PublicKey};
use tokio::time::timeout;

use super::bundle;
use super::findings::{Findings, Subject};
use super::listing::{Entry, Listing};
use super::pages::Pages;
use super::places;
use super::policy::RuleName;
use super::proof::Proof;
use super::refusal::VerificationError;
use super::signature::{NotASignature, Signature};
use super::simple_signing;
use super::unjudged::Unjudged;
use crate::registries::{Endpoint, Patience};
use crate::registry::{
    Document, DocumentRequest, RESOLVE, RegistryClient, RegistryError, RequestError, ResolvedImage,
};

/// Size limit of manifests of signatures, in bytes.
const LARGEST_MANIFEST: u64 = 128 << 10;
/// Size limit of bundles, payloads and lists of referrers, in bytes.
const LARGEST_DOCUMENT: u64 = 1 << 20;
/// Limit on the signatures of one manifest, and on the manifests of signatures of one list, that are looked at.
const MOST_LAYERS: usize = 100;
/// Limit on the requests for one image at one endpoint: anyone who may push can add signatures.
const MOST_REQUESTS: usize = 250;

impl RegistryClient {
    /// Finds a signature of an image by this key, and makes the proof that is kept with the image; without one, returns what was found.
    pub(super) async fn find_proof(
        &self,
        image: &ResolvedImage,
        rule: &RuleName,
        key: &PublicKey,
    ) -> Result<Result<Proof, Findings>, Box<VerificationError>> {
        let mut findings = Findings::default();
        let mut round = self.round(&image.reference);
        while let Some(turn) = round.turn() {
            let before = findings.clone();
            let mut search =
                Search::new(self, &turn.endpoint, image, Aim::Proof(key), &mut findings);
            let found = timeout(RESOLVE, search.run()).await;
            let failed = search.failed.take();
            let failed = match found {
                Ok(Some(proof)) => return Ok(Ok(proof)),
                Ok(None) => failed,
                Err(_) => Some(RequestError::Late),
            };
            if let Some(error) = failed
                && round.failed(turn, error)
            {
                // All of it is found once more.
                findings = before;
            }
        }
        let tried = round.into_tried();
        if findings.is_empty() && !tried.0.is_empty() {
            return Err(Box::new(VerificationError::Registry {
                rule: rule.clone(),
                key: key.fingerprint(),
                source: RegistryError {
                    reference: image.reference.clone(),
                    tried,
                },
            }));
        }
        Ok(Err(findings))
    }

    /// Finds the signatures of an image by whomever, for rules of later; as many as are kept. An endpoint that fails gives none.
    pub(crate) async fn find_signatures(&self, image: &ResolvedImage) -> Unjudged {
        let (mut found, mut findings) = (Unjudged::default(), Findings::default());
        let mut round = self.round(&image.reference);
        while let Some(turn) = round.turn() {
            let mut search = Search::new(
                self,
                &turn.endpoint,
                image,
                Aim::All(&mut found),
                &mut findings,
            );
            let searched = timeout(RESOLVE, search.run()).await;
            let failed = match searched {
                Ok(_) => search.failed.take(),
                Err(_) => Some(RequestError::Late),
            };
            if let Some(error) = failed {
                round.failed(turn, error);
            }
        }
        found
    }
}

/// What is searched for.
enum Aim<'a> {
    /// A proof by this key: the first one ends the search.
    Proof(&'a PublicKey),
    /// All signatures that are about the image.
    All(&'a mut Unjudged),
}

/// A search at one endpoint.
struct Search<'a> {
    client: &'a RegistryClient,
    endpoint: &'a Endpoint,
    reference: &'a ImageReference,
    subject: Subject<'a>,
    aim: Aim<'a>,
    findings: &'a mut Findings,
    /// The manifests of lists that were looked at.
    seen: BTreeSet<Digest>,
    requests: usize,
    /// The first request that failed. The other places are looked at all the same.
    failed: Option<RequestError>,
    /// The last requests in a row that had no answer.
    silences: usize,
}

impl<'a> Search<'a> {
    /// A search that has not asked for anything yet.
    fn new(
        client: &'a RegistryClient,
        endpoint: &'a Endpoint,
        image: &'a ResolvedImage,
        aim: Aim<'a>,
        findings: &'a mut Findings,
    ) -> Self {
        Search {
            client,
            endpoint,
            reference: &image.reference,
            subject: Subject {
                image: image.digest(),
                index: image.index.as_deref(),
            },
            aim,
            findings,
            seen: BTreeSet::new(),
            requests: 0,
            failed: None,
            silences: 0,
        }
    }
}

impl Search<'_> {
    async fn run(&mut self) -> Option<Proof> {
        for digest in self.subject.digests() {
            let [referrers, tag] = places::of_bundles(digest);
            if let Some(proof) = self.referrers(&referrers).await {
                return Some(proof);
            }
            let listing = self.listing(&tag, None).await;
            if let Some(proof) = self.bundles(listing.unwrap_or_default()).await {
                return Some(proof);
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

    /// Looks at the bundles of a registry's list of referrers.
    async fn referrers(&mut self, list: &str) -> Option<Proof> {
        for mut pages in Pages::of(list) {
            while let Some(place) = pages.next_place() {
                let Some(page) = self.document(&place, None, LARGEST_DOCUMENT).await else {
                    match self.silences {
                        0 => break,
                        _ => return None,
                    }
                };
                pages.came(&page);
                let listing = self.parsed(&page).unwrap_or_default();
                if let Some(proof) = self.bundles(listing).await {
                    return Some(proof);
                }
            }
        }
        None
    }

    /// Looks at the bundles of a list of manifests, or of a manifest.
    async fn bundles(&mut self, listing: Listing) -> Option<Proof> {
        let mut layers = listing.layers;
        let manifests = listing.manifests.into_iter();
        let bundles = manifests.filter(Entry::may_hold_bundle);
        let new = bundles.filter(|entry| self.seen.insert(entry.digest));
        for entry in new.take(MOST_LAYERS).collect::<Vec<_>>() {
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
        match &mut self.aim {
            Aim::Proof(key) => self.findings.judge(signature, key, &self.subject),
            Aim::All(found) => {
                found.add(&Unjudged::about(&self.subject, [signature]));
                None
            }
        }
    }

    fn readable<T>(&mut self, read: Result<T, NotASignature>) -> Option<T> {
        read.inspect_err(|error| self.findings.unreadable(error))
            .ok()
    }

    /// Gets a manifest or an index; None if there is none.
    async fn listing(&mut self, place: &str, entry: Option<&Entry>) -> Option<Listing> {
        let document = self.document(place, entry, LARGEST_MANIFEST).await?;
        self.parsed(&document)
    }

    fn parsed(&mut self, document: &Document) -> Option<Listing> {
        let listing = serde_json::from_slice(&document.bytes);
        self.readable(listing.map_err(|source| NotASignature::Json {
            what: "manifest",
            source,
        }))
    }

    async fn blob(&mut self, layer: &Entry) -> Option<Vec<u8>> {
        let place = format!("blobs/{}", layer.digest);
        let blob = self.document(&place, Some(layer), LARGEST_DOCUMENT).await?;
        Some(blob.bytes)
    }

    /// Limit on requests in a row without an answer: each further place would take as long again. Firewalls are silent about a place that they do
    /// not know, which is no reason to give up the others of the only registry that is left.
    fn most_silences(&self) -> usize {
        match self.endpoint.patience {
            Patience::Brief => 1,
            Patience::Full => 2,
        }
    }

    /// Gets a document of at most `limit` bytes, which has to be the one that the entry names; None if there is none.
    async fn document(
        &mut self,
        place: &str,
        entry: Option<&Entry>,
        limit: u64,
    ) -> Option<Document> {
        if let Some(size) = entry.map(|entry| entry.size).filter(|&size| size > limit) {
            self.findings
                .unreadable(&NotASignature::TooLarge { size, limit });
            return None;
        }
        if self.requests == MOST_REQUESTS || self.silences >= self.most_silences() {
            return None;
        }
        self.requests += 1;
        let request = DocumentRequest {
            endpoint: self.endpoint,
            reference: self.reference,
            place,
            accept: places::ACCEPT,
            limit,
        };
        let document = self.client.document(request).await.and_then(|document| {
            let (digest, size) = (entry.map(|it| it.digest), entry.map(|it| it.size));
            document.check("a signature's document", digest, size)?;
            Ok(document)
        });
        self.silences = match &document {
            Err(error) if error.is_silence() => self.silences + 1,
            _ => 0,
        };
        match document {
            Ok(document) => Some(document),
            Err(error) if places::is_absence(&error) => None,
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }
}
