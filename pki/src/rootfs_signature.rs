//! The signature that binds an installer's root filesystem to a key: made when the image is built, checked by the machine that upgrades.
//!
//! The signed text names the version, so that nobody can offer an old root filesystem under a newer version's name. It begins with its own
//! purpose, so that a signature by the same key for another purpose (a UKI's, a certificate's) is never one of these.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_values::PublicKey;

use crate::signature::is_signature;

/// The label of installer images with the signature in base64.
pub const LABEL: &str = "dev.instar.rootfs.signature";

/// The text that is signed.
#[must_use]
pub fn statement(version: &str, rootfs: &blake3::Hash) -> String {
    format!("Instar root filesystem, statement 1\nversion: {version}\nblake3: {rootfs}\n")
}

/// Returns a signature as the label has it.
#[must_use]
pub fn to_label(signature: &[u8]) -> String {
    BASE64_STANDARD.encode(signature)
}

/// Returns the first of these keys whose owner has signed this root filesystem as this version; none if the label holds no base64.
pub fn signer<'a>(
    keys: impl IntoIterator<Item = &'a PublicKey>,
    version: &str,
    rootfs: &blake3::Hash,
    label: &str,
) -> Option<&'a PublicKey> {
    let signature = BASE64_STANDARD.decode(label).ok()?;
    let statement = statement(version, rootfs);
    keys.into_iter()
        .find(|key| is_signature(key, statement.as_bytes(), &signature))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};

    use super::*;

    fn key() -> (EcdsaKeyPair, PublicKey) {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pair.as_ref(), &random)
                .unwrap();
        let public = ring::signature::KeyPair::public_key(&pair).as_ref();
        // SubjectPublicKeyInfo of a P-256 key (RFC 5480).
        let head = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE";
        let mut der = BASE64_STANDARD.decode(head).unwrap();
        der.truncate(26);
        der.extend(public);
        let pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            BASE64_STANDARD.encode(der)
        );
        (pair, pem.parse().unwrap())
    }

    fn sign(pair: &EcdsaKeyPair, version: &str, rootfs: &blake3::Hash) -> String {
        let signature = pair
            .sign(&SystemRandom::new(), statement(version, rootfs).as_bytes())
            .unwrap();
        to_label(signature.as_ref())
    }

    #[test]
    fn only_the_signed_version_and_digest_pass_and_only_by_the_signer() {
        let ((pair, public), (_, other)) = (key(), key());
        let (rootfs, another) = (blake3::hash(b"rootfs"), blake3::hash(b"another"));
        let label = sign(&pair, "v0.2.0", &rootfs);
        let by = |keys: &[&PublicKey], version: &str, rootfs: &blake3::Hash, label: &str| {
            signer(keys.iter().copied(), version, rootfs, label).map(PublicKey::fingerprint)
        };
        let found = Some(public.fingerprint());
        assert_eq!(by(&[&other, &public], "v0.2.0", &rootfs, &label), found);
        assert_eq!(by(&[&other], "v0.2.0", &rootfs, &label), None);
        assert_eq!(by(&[], "v0.2.0", &rootfs, &label), None);
        assert_eq!(by(&[&public], "v0.3.0", &rootfs, &label), None);
        assert_eq!(by(&[&public], "v0.2.0", &another, &label), None);
        for bad in ["", "====", "no base64", &label[4..]] {
            assert_eq!(by(&[&public], "v0.2.0", &rootfs, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn no_bit_of_a_signature_may_differ() {
        let (pair, public) = key();
        let rootfs = blake3::hash(b"rootfs");
        let good = BASE64_STANDARD
            .decode(sign(&pair, "v0.2.0", &rootfs))
            .unwrap();
        for bit in 0..8 * good.len() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let label = to_label(&bad);
            assert!(
                signer([&public], "v0.2.0", &rootfs, &label).is_none(),
                "bit {bit}"
            );
        }
    }
}
