//! Checks a signature with a public key.

use instar_values::{KeyAlgorithm, PublicKey};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519,
    RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};

/// Returns whether the owner of this key has signed these bytes. The kind of the key alone decides the kind of signature.
#[must_use]
pub fn is_signature(key: &PublicKey, signed: &[u8], signature: &[u8]) -> bool {
    let algorithms: &[&'static dyn VerificationAlgorithm] = match key.algorithm() {
        KeyAlgorithm::EcdsaP256 => &[&ECDSA_P256_SHA256_ASN1],
        KeyAlgorithm::EcdsaP384 => &[&ECDSA_P384_SHA256_ASN1, &ECDSA_P384_SHA384_ASN1],
        KeyAlgorithm::Ed25519 => &[&ED25519],
        KeyAlgorithm::Rsa => &[&RSA_PKCS1_2048_8192_SHA256],
    };
    algorithms.iter().any(|algorithm| {
        let key = UnparsedPublicKey::new(*algorithm, key.bytes());
        key.verify(signed, signature).is_ok()
    })
}
