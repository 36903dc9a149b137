//! The parts of a signature that its form decides: the bytes that are signed, the images that they are about, and the layer that holds them.

use std::borrow::Cow;

use instar_values::{Digest, PublicKey};

use super::signature::{Form, NotASignature, Signature};
use super::{bundle, simple_signing};

impl Signature {
    /// Whether it was made with this key.
    pub(super) fn is_by(&self, key: &PublicKey) -> bool {
        let signed = match self.form {
            Form::SimpleSigning => Cow::from(&self.payload),
            Form::Statement => Cow::from(bundle::signed_bytes(&self.payload)),
        };
        instar_pki::is_signature(key, &signed, &self.signature)
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
