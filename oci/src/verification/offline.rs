//! Signatures that come in a bundle with their image: judged as those at a registry, without one.

use std::collections::BTreeMap;
use std::io;

use instar_bundle::{Image, VerifiedBundle};
use instar_values::{Digest, PublicKey};
use serde::Deserialize;

use super::admission::FoundProof;
use super::findings::{Findings, Subject};
use super::places;
use super::policy::{Policy, RuleName};
use super::refusal::VerificationError;
use super::signature::{NotASignature, Signature};
use super::unjudged::Unjudged;
use super::verified::Verified;
use super::{bundle, simple_signing};
use crate::registry::ResolvedImage;

/// Limit on the manifests of signatures of one image that are read, and on the documents that they name: anyone can add some to a bundle.
const MOST_MANIFESTS: usize = 100;
const MOST_DOCUMENTS: usize = 100;
/// Size limit of a document with signatures, in bytes. Real ones have some KiB.
const LARGEST_DOCUMENT: u64 = 256 << 10;

#[derive(Debug, Default, Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Policy {
    /// Verifies an image of a bundle by the signatures in the bundle. All that are about the image stay with it, whatever the rules of today
    /// want.
    ///
    /// # Errors
    /// The policy refuses the image, or the bundle cannot be read any more.
    pub fn verify_offline(
        &self,
        bundle: &VerifiedBundle,
        image: &Image,
        resolved: ResolvedImage,
    ) -> Result<Verified<ResolvedImage>, Box<VerificationError>> {
        let unreadable = |wanted: Option<(&RuleName, &PublicKey)>, source| {
            Box::new(VerificationError::Bundle {
                image: image.reference.clone(),
                digest: image.manifest.digest,
                wanted: wanted.map(|(rule, key)| (rule.clone(), key.fingerprint())),
                source,
            })
        };
        let verified = self.verify_by(resolved, |resolved, rule, key| {
            let found = find_proof(bundle, image, &subject_of(resolved), key);
            found.map_err(|source| unreadable(Some((rule, key)), source))
        })?;
        let unjudged = unjudged(bundle, image, &subject_of(&verified));
        let unjudged = unjudged.map_err(|source| unreadable(None, source))?;
        Ok(verified.with_unjudged(unjudged))
    }
}

fn subject_of(image: &ResolvedImage) -> Subject<'_> {
    Subject {
        image: image.digest(),
        index: image.index.as_deref(),
    }
}

/// The signatures of an image that stay with it. Not more of them than stay are in memory at any time.
fn unjudged(bundle: &VerifiedBundle, image: &Image, subject: &Subject<'_>) -> io::Result<Unjudged> {
    let mut failed = None;
    let readable = signatures(bundle, image).map_while(|signature| match signature {
        Ok(readable) => Some(readable.ok()),
        Err(error) => {
            failed = Some(error);
            None
        }
    });
    let unjudged = Unjudged::about(subject, readable.flatten());
    failed.map_or(Ok(unjudged), Err)
}

/// Whether an image of a bundle is signed by the owner of this key, itself or as a part of its index.
///
/// # Errors
/// The bundle cannot be read any more.
pub fn is_signed_by(bundle: &VerifiedBundle, image: &Image, key: &PublicKey) -> io::Result<bool> {
    let digests = [Some(image.manifest.digest), image.index];
    for signature in signatures(bundle, image) {
        let Ok(signature) = signature? else { continue };
        let subjects = match signature.is_by(key) {
            true => signature.subjects().unwrap_or_default(),
            false => continue,
        };
        if digests
            .iter()
            .flatten()
            .any(|digest| subjects.contains(digest))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn find_proof(
    bundle: &VerifiedBundle,
    image: &Image,
    subject: &Subject<'_>,
    key: &PublicKey,
) -> io::Result<FoundProof> {
    let mut findings = Findings::default();
    for signature in signatures(bundle, image) {
        match signature? {
            Ok(signature) => {
                if let Some(proof) = findings.judge(signature, key, subject) {
                    return Ok(Ok(proof));
                }
            }
            Err(error) => findings.unreadable(&error),
        }
    }
    Ok(Err(findings))
}

/// The signatures for an image or its index, read one document after the other, and no more documents than the limits allow.
fn signatures<'a>(
    bundle: &'a VerifiedBundle,
    image: &'a Image,
) -> impl Iterator<Item = io::Result<Result<Signature, NotASignature>>> + 'a {
    let subjects = [Some(image.manifest.digest), image.index];
    let all = bundle.index().signatures().iter();
    let ours = all.filter(move |it| subjects.contains(&Some(it.subject)));
    let ours = ours.take(MOST_MANIFESTS);
    let layers = ours.flat_map(|signature| layers(bundle, signature.manifest.digest));
    let layers = layers.take(MOST_DOCUMENTS);
    layers.flat_map(|layer| match layer.and_then(|layer| read(bundle, &layer)) {
        Ok(signatures) => signatures.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    })
}

/// The layers of a manifest that hold signatures. A manifest that cannot be read has none.
fn layers(bundle: &VerifiedBundle, manifest: Digest) -> Vec<io::Result<Layer>> {
    let bytes = match bundle.document(manifest) {
        Ok(bytes) => bytes,
        Err(error) => return vec![Err(error)],
    };
    let manifest: Manifest = serde_json::from_slice(&bytes).unwrap_or_default();
    let layers = manifest.layers.into_iter();
    let layers = layers.filter(|layer| places::is_signature(&layer.media_type));
    layers.map(Ok).collect()
}

/// Reads the signatures of a layer.
fn read(
    bundle: &VerifiedBundle,
    layer: &Layer,
) -> io::Result<Vec<Result<Signature, NotASignature>>> {
    if layer.size > LARGEST_DOCUMENT {
        return Ok(vec![Err(NotASignature::TooLarge {
            size: layer.size,
            limit: LARGEST_DOCUMENT,
        })]);
    }
    let document = bundle.document(layer.digest)?;
    if places::is_bundle(&layer.media_type) {
        return Ok(match bundle::signatures(&document) {
            Ok(signatures) => signatures.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        });
    }
    let annotation = layer.annotations.get(simple_signing::ANNOTATION);
    let signature = annotation.ok_or(NotASignature::Bare);
    Ok(vec![signature.and_then(|annotation| {
        simple_signing::signature(document, annotation)
    })])
}
