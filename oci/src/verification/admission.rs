//! Admits images: resolved ones by the signatures at their registry, those of the store by the proofs that are kept with them.

use instar_values::{Digest, ImageReference, PublicKey};

use super::findings::{Findings, Subject};
use super::policy::{Policy, RuleName, Verdict};
use super::proof::{Proof, Proofs};
use super::refusal::{Refusal, VerificationError};
use super::unjudged::Unjudged;
use super::verified::{Basis, Verified, VerifiedImage};
use crate::registry::{RegistryClient, ResolvedImage};
use crate::store::PulledImage;

impl Policy {
    /// Refuses images that a rule denies, by their name alone.
    ///
    /// # Errors
    /// The rule.
    pub fn refuse_denied(&self, image: &ImageReference) -> Result<(), Box<Refusal>> {
        match self.verdict(image) {
            Verdict::Deny(rule) => Err(Box::new(Refusal::Denied {
                image: image.clone(),
                rule,
            })),
            _ => Ok(()),
        }
    }

    /// Whether an image of this name is allowed by a signature alone.
    ///
    /// # Errors
    /// The policy denies the name.
    pub fn needs_signature(&self, image: &ImageReference) -> Result<bool, Box<Refusal>> {
        let decision = self.decide(image, ())?;
        Ok(matches!(decision, Decision::NeedsSignature(..)))
    }

    /// Admits an image of the store that is to be used by this name, without a registry: by the proofs and signatures that are kept with
    /// it.
    ///
    /// # Errors
    /// The rule, and what was found instead.
    pub fn admit(
        &self,
        name: &ImageReference,
        image: PulledImage,
    ) -> Result<VerifiedImage, Box<Refusal>> {
        let (digest, kept) = (image.digest(), (image.proofs(), image.unjudged()));
        self.admit_by(name, image, digest, &kept)
    }

    /// Judges an image that may be gone, by the signatures that were kept of it.
    ///
    /// # Errors
    /// The rule, and what was found instead.
    pub fn allows(
        &self,
        name: &ImageReference,
        digest: Digest,
        kept: &Unjudged,
    ) -> Result<(), Box<Refusal>> {
        let kept = (Proofs::default(), kept.clone());
        self.admit_by(name, (), digest, &kept).map(drop)
    }

    /// Admits an image that was resolved from the store's blobs, by proofs and signatures that are kept for it.
    ///
    /// # Errors
    /// The rule, and what was found instead.
    pub(crate) fn admit_resolved(
        &self,
        image: ResolvedImage,
        kept: &(Proofs, Unjudged),
    ) -> Result<Verified<ResolvedImage>, Box<Refusal>> {
        let (name, digest) = (image.reference.clone(), image.digest());
        self.admit_by(&name, image, digest, kept)
    }

    /// Admits an image of this digest by proofs, and else by signatures that no rule has asked for before.
    fn admit_by<T>(
        &self,
        name: &ImageReference,
        image: T,
        digest: Digest,
        (proofs, unjudged): &(Proofs, Unjudged),
    ) -> Result<Verified<T>, Box<Refusal>> {
        match self.decide(name, image)? {
            Decision::Allowed(verified) => Ok(verified),
            Decision::NeedsSignature(image, rule, key) => {
                let mut findings = Findings::default();
                let subject = Subject {
                    image: digest,
                    index: None,
                };
                for proof in proofs.iter() {
                    if proof.holds(key, digest).is_ok() {
                        return Ok(Verified::signed(image, rule, proof.clone()));
                    }
                    findings.judge(proof.clone().into_signature(), key, &subject);
                }
                let subject = unjudged.subject(digest);
                for signature in unjudged.iter() {
                    if let Some(proof) = findings.judge(signature.clone(), key, &subject) {
                        return Ok(Verified::signed(image, rule, proof));
                    }
                }
                let key = key.fingerprint();
                Err(Box::new(Refusal::not_signed(
                    name, digest, rule, key, &findings,
                )))
            }
        }
    }

    /// Verifies a resolved image by the signatures at its registry.
    ///
    /// # Errors
    /// The policy refuses the image, or the registry cannot be asked.
    pub(crate) async fn verify(
        &self,
        client: &RegistryClient,
        image: ResolvedImage,
    ) -> Result<Verified<ResolvedImage>, Box<VerificationError>> {
        let name = image.reference.clone();
        match self.decide(&name, image).map_err(refused)? {
            Decision::Allowed(verified) => Ok(verified),
            Decision::NeedsSignature(image, rule, key) => {
                let found = client.find_proof(&image, &rule, key).await?;
                judged(image, rule, key, found)
            }
        }
    }

    /// Verifies a resolved image by signatures that this function finds.
    pub(super) fn verify_by(
        &self,
        image: ResolvedImage,
        find: impl FnOnce(
            &ResolvedImage,
            &RuleName,
            &PublicKey,
        ) -> Result<FoundProof, Box<VerificationError>>,
    ) -> Result<Verified<ResolvedImage>, Box<VerificationError>> {
        let name = image.reference.clone();
        match self.decide(&name, image).map_err(refused)? {
            Decision::Allowed(verified) => Ok(verified),
            Decision::NeedsSignature(image, rule, key) => {
                let found = find(&image, &rule, key)?;
                judged(image, rule, key, found)
            }
        }
    }

    /// Decides about an image by its name.
    fn decide<T>(&self, name: &ImageReference, image: T) -> Result<Decision<'_, T>, Box<Refusal>> {
        Ok(match self.verdict(name) {
            Verdict::NoRule => Decision::Allowed(Verified::without_signature(image, Basis::NoRule)),
            Verdict::Skip(rule) => {
                Decision::Allowed(Verified::without_signature(image, Basis::Skipped(rule)))
            }
            Verdict::SignedBy(rule, key) => Decision::NeedsSignature(image, rule, key),
            Verdict::Deny(rule) => {
                return Err(Box::new(Refusal::Denied {
                    image: name.clone(),
                    rule,
                }));
            }
        })
    }
}

/// A proof, or what was found instead.
pub(super) type FoundProof = Result<Proof, Findings>;

fn judged(
    image: ResolvedImage,
    rule: RuleName,
    key: &PublicKey,
    found: FoundProof,
) -> Result<Verified<ResolvedImage>, Box<VerificationError>> {
    match found {
        Ok(proof) => Ok(Verified::signed(image, rule, proof)),
        Err(findings) => {
            let (name, digest, key) = (&image.reference, image.digest(), key.fingerprint());
            let refusal = Refusal::not_signed(name, digest, rule, key, &findings);
            Err(refused(Box::new(refusal)))
        }
    }
}

fn refused(refusal: Box<Refusal>) -> Box<VerificationError> {
    Box::new(VerificationError::Refused(refusal))
}

/// The decision by an image's name.
enum Decision<'a, T> {
    Allowed(Verified<T>),
    NeedsSignature(T, RuleName, &'a PublicKey),
}
