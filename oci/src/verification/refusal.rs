//! Why the policy does not allow an image.

use instar_values::{Digest, ImageReference};

use super::findings::Findings;
use super::policy::RuleName;
use crate::registry::RegistryError;

/// The policy's refusal of an image.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A rule denies it.
    #[error("{image} is not allowed: {rule} of ImageVerificationConfig denies it")]
    Denied {
        /// The image.
        image: ImageReference,
        /// The rule.
        rule: RuleName,
    },
    /// It is not signed by the key of its rule.
    #[error(
        "{image} ({digest}) is not allowed: {rule} of ImageVerificationConfig wants a signature by the key {key}, and {found} was found; \
         sign the image, or change the rule"
    )]
    NotSigned {
        /// The image.
        image: ImageReference,
        /// The digest of its manifest.
        digest: Digest,
        /// The rule.
        rule: RuleName,
        /// The fingerprint of the rule's key.
        key: Digest,
        /// The signatures that were found instead, in words.
        found: String,
    },
}

impl Refusal {
    pub(super) fn not_signed(
        image: &ImageReference,
        digest: Digest,
        rule: RuleName,
        key: Digest,
        found: &Findings,
    ) -> Self {
        Refusal::NotSigned {
            image: image.clone(),
            digest,
            rule,
            key,
            found: found.to_string(),
        }
    }

    /// The rule that refuses the image.
    pub fn rule(&self) -> &RuleName {
        match self {
            Refusal::Denied { rule, .. } | Refusal::NotSigned { rule, .. } => rule,
        }
    }
}

/// Why an image is not verified.
#[derive(Debug, thiserror::Error)]
pub enum VerificationError {
    /// The policy refuses it.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// Its registry could not be asked for signatures, and none is kept.
    #[error(
        "{rule} of ImageVerificationConfig wants a signature by the key {key}, and the search for one failed"
    )]
    Registry {
        /// The rule.
        rule: RuleName,
        /// The fingerprint of the rule's key.
        key: Digest,
        /// The error of each endpoint.
        source: RegistryError,
    },
    /// The bundle that the image came in cannot be read any more.
    #[error(
        "{image} ({digest}) is not verified: reading its signatures from the bundle failed{}; bring the bundle again",
        wanted_by(wanted.as_ref())
    )]
    Bundle {
        /// The image.
        image: ImageReference,
        /// The digest of its manifest.
        digest: Digest,
        /// The rule that wants a signature, and the fingerprint of its key, if there is such a rule.
        wanted: Option<(RuleName, Digest)>,
        /// The error.
        source: std::io::Error,
    },
}

/// Who wants the signature that could not be read.
fn wanted_by(wanted: Option<&(RuleName, Digest)>) -> String {
    let wanted = wanted.map(|(rule, key)| {
        format!(", and {rule} of ImageVerificationConfig wants one by the key {key}")
    });
    wanted.unwrap_or_default()
}

impl VerificationError {
    /// Whether the registry and its mirrors cannot be reached ([`RegistryError::is_unreachable`]).
    pub fn is_unreachable(&self) -> bool {
        match self {
            VerificationError::Refused(_) | VerificationError::Bundle { .. } => false,
            VerificationError::Registry { source, .. } => source.is_unreachable(),
        }
    }
}
