//! A value that the policy allows. Only this room makes one.

use std::ops::Deref;

use instar_values::Digest;

use super::policy::RuleName;
use super::proof::Proof;
use super::unjudged::Unjudged;
use crate::store::PulledImage;

/// An image that the policy allows: resolved, and then it may be pulled; or pulled, and then it may be run and installed. It has no public
/// constructor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<T> {
    value: T,
    basis: Basis,
    proof: Option<Proof>,
    /// The other signatures that came with it.
    unjudged: Unjudged,
}

/// An image of the store that may be run and installed.
pub type VerifiedImage = Verified<PulledImage>;

/// Why the policy allows an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Basis {
    /// No rule matches.
    NoRule,
    /// A rule allows it without a signature.
    Skipped(RuleName),
    /// It is made from a file whose digest the machine's config names.
    OfFile,
    /// It is signed by the key of a rule.
    Signed {
        /// The rule.
        rule: RuleName,
        /// The key's fingerprint.
        key: Digest,
    },
}

impl VerifiedImage {
    /// An image that is made from a file: its name has the file's digest.
    pub(crate) fn of_file(image: PulledImage) -> Self {
        Verified {
            value: image,
            basis: Basis::OfFile,
            proof: None,
            unjudged: Unjudged::default(),
        }
    }
}

impl<T> Verified<T> {
    pub(super) fn without_signature(value: T, basis: Basis) -> Self {
        Verified {
            value,
            basis,
            proof: None,
            unjudged: Unjudged::default(),
        }
    }

    pub(super) fn signed(value: T, rule: RuleName, proof: Proof) -> Self {
        let key = proof.key();
        Verified {
            value,
            basis: Basis::Signed { rule, key },
            proof: Some(proof),
            unjudged: Unjudged::default(),
        }
    }

    /// The same with signatures that came with the image, for rules of later.
    pub(super) fn with_unjudged(self, unjudged: Unjudged) -> Self {
        Verified { unjudged, ..self }
    }

    /// Why the policy allows it.
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// The signature that it was verified by.
    pub(crate) fn proof(&self) -> Option<&Proof> {
        self.proof.as_ref()
    }

    /// All signatures that are known of it here: the one that it was verified by, and those that came with it.
    pub fn signatures(&self) -> Unjudged {
        let proven = self.proof.as_ref().map(Unjudged::of_proof);
        let mut all = proven.unwrap_or_default();
        all.add(&self.unjudged);
        all
    }

    /// Signatures that came with it, and that nobody has judged.
    pub(crate) fn unjudged(&self) -> &Unjudged {
        &self.unjudged
    }

    /// The value, which is only a value from here on.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// The same decision about the same image in another form. The caller makes sure that both have the same digest.
    pub(crate) fn same_image<U>(&self, value: U) -> Verified<U> {
        Verified {
            value,
            basis: self.basis.clone(),
            proof: self.proof.clone(),
            unjudged: self.unjudged.clone(),
        }
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
