//! Signatures that come in a bundle with their image: judged as those at a registry, without one.

use std::collections::BTreeMap;
use std::io;

use instar_bundle::{Image, VerifiedBundle};
use instar_values::{Digest, PublicKey};
use serde::Deserialize;

use super::admission::FoundProof;
use super::findings::{Findings, Subject};
use super::places;
use super::policy::Policy;
use super::refusal::VerificationError;
use super::signature::{NotASignature, Signature};
use super::unjudged::Unjudged;
use super::verified::Verified;
use super::{bundle, simple_signing};
use crate::registry::ResolvedImage;

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
        let unreadable = |source| Box::new(VerificationError::Bundle { source });
        let unjudged = unjudged(bundle, image, &subject_of(&resolved)).map_err(unreadable)?;
        let verified = self.verify_by(resolved, |resolved, key| {
            let found = find_proof(bundle, image, &subject_of(resolved), key);
            found.map_err(unreadable)
        });
        Ok(verified?.with_unjudged(unjudged))
    }
}

fn subject_of(image: &ResolvedImage) -> Subject<'_> {
    Subject {
        image: image.digest(),
        index: image.index.as_deref(),
    }
}

/// All signatures of an image that can be read.
fn unjudged(bundle: &VerifiedBundle, image: &Image, subject: &Subject<'_>) -> io::Result<Unjudged> {
    let mut readable = Vec::new();
    for signature in signatures(bundle, image) {
        readable.extend(signature?.ok());
    }
    Ok(Unjudged::about(subject, readable))
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

/// The signatures for an image or its index, read one document after the other.
fn signatures<'a>(
    bundle: &'a VerifiedBundle,
    image: &'a Image,
) -> impl Iterator<Item = io::Result<Result<Signature, NotASignature>>> + 'a {
    let subjects = [Some(image.manifest.digest), image.index];
    let all = bundle.index().signatures().iter();
    let ours = all.filter(move |it| subjects.contains(&Some(it.subject)));
    let layers = ours.flat_map(|signature| layers(bundle, signature.manifest.digest));
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
