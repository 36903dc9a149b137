//! Signers and signed documents for tests.

#![allow(clippy::unwrap_used)]

use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_values::{Digest, ImagePattern, ImageRule, PublicKey, RuleEffect};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SigningKey as _,
};
use serde_json::json;

use super::bundle;
use super::policy::Policy;
use super::signature::{Form, Signature};

/// A key pair.
pub(crate) struct Signer(KeyPair);

impl Signer {
    pub(crate) fn ecdsa() -> Self {
        Signer(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap())
    }

    pub(crate) fn p384() -> Self {
        Signer(KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap())
    }

    pub(crate) fn ed25519() -> Self {
        Signer(KeyPair::generate_for(&PKCS_ED25519).unwrap())
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.0.public_key_pem().parse().unwrap()
    }

    /// A policy that wants a signature by this key for all images.
    pub(crate) fn policy(&self) -> Policy {
        Policy::new(vec![ImageRule {
            pattern: ImagePattern::new("*"),
            effect: RuleEffect::SignedBy(self.public_key()),
        }])
    }

    pub(crate) fn simple(&self, payload: Vec<u8>) -> Signature {
        let signature = self.0.sign(&payload).unwrap();
        Signature {
            form: Form::SimpleSigning,
            payload,
            signature,
        }
    }

    pub(crate) fn statement(&self, payload: Vec<u8>) -> Signature {
        let signature = self.0.sign(&bundle::signed_bytes(&payload)).unwrap();
        Signature {
            form: Form::Statement,
            payload,
            signature,
        }
    }
}

/// A payload as cosign writes it.
pub(crate) fn payload(image: Digest) -> Vec<u8> {
    let payload = json!({
        "critical": {
            "identity": {"docker-reference": "r.io/elsewhere"},
            "image": {"docker-manifest-digest": image},
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    payload.to_string().into_bytes()
}

/// A statement as cosign writes it.
pub(crate) fn statement(image: Digest) -> Vec<u8> {
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "", "digest": {"sha256": image.hex()}}],
        "predicateType": "https://sigstore.dev/cosign/sign/v1",
        "predicate": {},
    });
    statement.to_string().into_bytes()
}

/// A bundle as cosign writes it.
pub(crate) fn bundle_of(signature: &Signature) -> Vec<u8> {
    let bundle = json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "aGludA=="}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": BASE64_STANDARD.encode(&signature.payload),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": BASE64_STANDARD.encode(&signature.signature)}],
        },
    });
    bundle.to_string().into_bytes()
}

/// The text of the annotation beside a payload.
pub(crate) fn annotation(signature: &Signature) -> String {
    BASE64_STANDARD.encode(&signature.signature)
}
