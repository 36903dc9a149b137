//! A signature over a statement about an image, in one of the two forms that cosign writes.

use instar_values::{Digest, PublicKey};
use serde::{Deserialize, Serialize};

use super::{bundle, simple_signing};

/// The form of the signed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Form {
    /// The payload itself is signed: cosign's older form.
    SimpleSigning,
    /// The payload is an in-toto statement in a DSSE envelope of a bundle.
    Statement,
}

/// A signature, its signed payload, and nothing that is not signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Signature {
    pub(super) form: Form,
    #[serde(with = "base64_text")]
    pub(super) payload: Vec<u8>,
    #[serde(with = "base64_text")]
    pub(super) signature: Vec<u8>,
}

/// Why a document is no signature of an image.
#[derive(Debug, thiserror::Error)]
pub enum NotASignature {
    /// The document is not JSON, or lacks fields.
    #[error("the {what} cannot be read")]
    Json {
        /// The document: `bundle`, `statement` or `payload`.
        what: &'static str,
        /// The error with its position.
        source: serde_json::Error,
    },
    /// The document is of another type.
    #[error("the {what} is of the type {found:?}, not {wanted:?}")]
    Type {
        /// The document.
        what: &'static str,
        /// Its type.
        found: String,
        /// The type of a signature.
        wanted: &'static str,
    },
    /// The bundle signs a file instead of a statement about an image.
    #[error("the bundle holds no DSSE envelope: it signs a file, not an image")]
    NoEnvelope,
    /// The layer has no signature beside its payload.
    #[error("the payload has no signature beside it")]
    Bare,
    /// The document is larger than the limit.
    #[error("it has {size} bytes; at most {limit} are taken")]
    TooLarge {
        /// Size in bytes.
        size: u64,
        /// The limit, in bytes.
        limit: u64,
    },
}

impl Signature {
    /// Whether it was made with this key.
    pub(super) fn is_by(&self, key: &PublicKey) -> bool {
        let signed = match self.form {
            Form::SimpleSigning => self.payload.clone(),
            Form::Statement => bundle::signed_bytes(&self.payload),
        };
        instar_pki::is_signature(key, &signed, &self.signature)
    }

    /// The signed bytes, without the type that is signed with them.
    #[cfg(test)]
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The layer of a manifest that holds the signature.
    pub(super) fn as_layer(&self) -> SignatureLayer {
        match self.form {
            Form::SimpleSigning => SignatureLayer {
                media_type: simple_signing::LAYER_TYPE,
                content: self.payload.clone(),
                annotation: Some((
                    simple_signing::ANNOTATION,
                    simple_signing::annotation(&self.signature),
                )),
            },
            Form::Statement => SignatureLayer {
                media_type: bundle::WRITTEN_TYPE,
                content: bundle::written(&self.payload, &self.signature),
                annotation: None,
            },
        }
    }

    /// The digests that the payload is about. To be called once its signature is verified.
    pub(super) fn subjects(&self) -> Result<Vec<Digest>, NotASignature> {
        match self.form {
            Form::SimpleSigning => simple_signing::subject(&self.payload).map(|it| vec![it]),
            Form::Statement => bundle::subjects(&self.payload),
        }
    }
}

/// A layer with a signature.
pub(super) struct SignatureLayer {
    pub(super) media_type: &'static str,
    pub(super) content: Vec<u8>,
    pub(super) annotation: Option<(&'static str, String)>,
}

/// Shortens a text of a registry for an error.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Bytes as base64 in JSON.
pub(super) mod base64_text {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        BASE64_STANDARD
            .decode(text.as_bytes())
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::test_signing::{Signer, payload, statement};

    #[test]
    fn each_kind_of_key_verifies_its_signatures_and_no_others() {
        let signers = [
            Signer::ecdsa(),
            Signer::p384(),
            Signer::ed25519(),
            Signer::ecdsa(),
        ];
        let image = Digest::of(b"image");
        for (at, signer) in signers.iter().enumerate() {
            for signature in [
                signer.simple(payload(image)),
                signer.statement(statement(image)),
            ] {
                for (other, verifier) in signers.iter().enumerate() {
                    assert_eq!(signature.is_by(&verifier.public_key()), at == other);
                }
                assert_eq!(signature.subjects().unwrap(), [image]);
            }
        }
    }

    #[test]
    fn one_form_does_not_pass_for_the_other() {
        let (signer, image) = (Signer::ecdsa(), Digest::of(b"image"));
        let simple = signer.simple(payload(image));
        let swapped = Signature {
            form: Form::Statement,
            ..simple
        };
        assert!(!swapped.is_by(&signer.public_key()));
    }

    #[test]
    fn no_byte_of_payload_or_signature_may_differ() {
        let (signer, image) = (Signer::ecdsa(), Digest::of(b"image"));
        let key = signer.public_key();
        for good in [
            signer.simple(payload(image)),
            signer.statement(statement(image)),
        ] {
            assert!(good.is_by(&key));
            for at in 0..good.payload.len() {
                let mut bad = good.clone();
                bad.payload[at] ^= 1;
                assert!(!bad.is_by(&key), "payload, byte {at}");
            }
            for at in 0..good.signature.len() {
                let mut bad = good.clone();
                bad.signature[at] ^= 1;
                assert!(!bad.is_by(&key), "signature, byte {at}");
            }
        }
    }
}
