//! A public key that signatures are checked with.

use std::fmt;
use std::str::FromStr;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
    OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::digest::Digest;

/// The kind of a key, and with it the only kind of signature that is checked with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// ECDSA on P-256 over SHA-256.
    EcdsaP256,
    /// ECDSA on P-384, over SHA-256 as older versions of cosign sign, or over SHA-384.
    EcdsaP384,
    /// Ed25519.
    Ed25519,
    /// RSA of 2048 to 8192 bits, PKCS#1 v1.5 over SHA-256.
    Rsa,
}

/// A public key. A certificate is read for its key alone: its dates and its issuer do not count, because the owner names this very key.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: KeyAlgorithm,
    /// The content of its bit string: a point, 32 bytes, or an RSA key of PKCS#1.
    key: Vec<u8>,
    fingerprint: Digest,
    pem: String,
}

/// Why a text holds no usable public key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotAKey {
    /// The text is not one block of PEM.
    #[error(
        "this must be one public key in PEM (-----BEGIN PUBLIC KEY-----, as cosign writes it) or one certificate"
    )]
    Pem,
    /// The block holds a private key.
    #[error(
        "this is a private key; the public key is wanted here, and the private one belongs on no machine"
    )]
    Private,
    /// The block cannot be read.
    #[error("the public key cannot be read")]
    Malformed,
    /// The key is of another kind.
    #[error(
        "keys of this kind are not supported; ECDSA on P-256 or P-384, Ed25519 and RSA of 2048 to 8192 bits are"
    )]
    Algorithm,
}

impl PublicKey {
    /// Its kind.
    #[must_use]
    pub fn algorithm(&self) -> KeyAlgorithm {
        self.algorithm
    }

    /// The key itself, as the content of the bit string of its SubjectPublicKeyInfo.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.key
    }

    /// The SHA-256 digest of its SubjectPublicKeyInfo, by which messages name it.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
    }

    /// The PEM text that it was read from; empty if it was DER.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Reads a certificate's key.
    ///
    /// # Errors
    /// It is not one certificate in DER, or its key is of a kind that is not supported.
    pub fn from_certificate(der: &[u8]) -> Result<Self, NotAKey> {
        PublicKey::of_certificate(der, "")
    }

    fn of_certificate(der: &[u8], pem: &str) -> Result<Self, NotAKey> {
        let (rest, certificate) =
            x509_parser::parse_x509_certificate(der).map_err(|_| NotAKey::Malformed)?;
        match rest.is_empty() {
            true => PublicKey::from_spki(certificate.public_key().raw, pem),
            false => Err(NotAKey::Malformed),
        }
    }

    fn from_spki(der: &[u8], pem: &str) -> Result<Self, NotAKey> {
        let (rest, spki) = SubjectPublicKeyInfo::from_der(der).map_err(|_| NotAKey::Malformed)?;
        if !rest.is_empty() {
            return Err(NotAKey::Malformed);
        }
        let key = spki.subject_public_key.data.to_vec();
        Ok(PublicKey {
            algorithm: algorithm(&spki, &key)?,
            key,
            fingerprint: Digest::of(der),
            pem: pem.to_owned(),
        })
    }
}

fn algorithm(spki: &SubjectPublicKeyInfo<'_>, key: &[u8]) -> Result<KeyAlgorithm, NotAKey> {
    let kind = &spki.algorithm.algorithm;
    if *kind == OID_SIG_ED25519 {
        return match key.len() {
            32 => Ok(KeyAlgorithm::Ed25519),
            _ => Err(NotAKey::Malformed),
        };
    }
    if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = spki.algorithm.parameters.as_ref();
        let curve = curve.and_then(|curve| curve.as_oid().ok());
        let (algorithm, length) = match curve.ok_or(NotAKey::Malformed)? {
            curve if curve == OID_EC_P256 => (KeyAlgorithm::EcdsaP256, 65),
            curve if curve == OID_NIST_EC_P384 => (KeyAlgorithm::EcdsaP384, 97),
            _ => return Err(NotAKey::Algorithm),
        };
        // Points are written uncompressed.
        return match key.len() == length && key.first() == Some(&4) {
            true => Ok(algorithm),
            false => Err(NotAKey::Malformed),
        };
    }
    if *kind == OID_PKCS1_RSAENCRYPTION {
        let parsed = spki.parsed().map_err(|_| NotAKey::Malformed)?;
        return match parsed {
            public_key::PublicKey::RSA(rsa) if (2048..=8192).contains(&rsa.key_size()) => {
                Ok(KeyAlgorithm::Rsa)
            }
            _ => Err(NotAKey::Algorithm),
        };
    }
    Err(NotAKey::Algorithm)
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.matches("-----BEGIN ").count() != 1 {
            return Err(NotAKey::Pem);
        }
        if text.contains("PRIVATE KEY-----") {
            return Err(NotAKey::Private);
        }
        if let Ok(spki) = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()) {
            return PublicKey::from_spki(&spki, text);
        }
        let certificate =
            CertificateDer::from_pem_slice(text.as_bytes()).map_err(|_| NotAKey::Pem)?;
        PublicKey::of_certificate(&certificate, text)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    };

    use super::*;

    #[test]
    fn keys_and_certificates_are_read() {
        for (kind, expected) in [
            (&PKCS_ECDSA_P256_SHA256, KeyAlgorithm::EcdsaP256),
            (&PKCS_ECDSA_P384_SHA384, KeyAlgorithm::EcdsaP384),
            (&PKCS_ED25519, KeyAlgorithm::Ed25519),
        ] {
            let pair = KeyPair::generate_for(kind).unwrap();
            let key: PublicKey = pair.public_key_pem().parse().unwrap();
            assert_eq!(key.algorithm(), expected);
            assert_eq!(key.bytes(), pair.public_key_raw());
            let certificate = CertificateParams::default().self_signed(&pair).unwrap();
            let same: PublicKey = certificate.pem().parse().unwrap();
            assert_eq!(same.fingerprint(), key.fingerprint());
            assert_eq!(same.bytes(), key.bytes());
            assert_eq!(
                pair.serialize_pem().parse::<PublicKey>(),
                Err(NotAKey::Private)
            );
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let pem = KeyPair::generate().unwrap().public_key_pem();
        let two = format!("{pem}{pem}");
        for text in [
            "",
            "PEM",
            two.as_str(),
            &pem.replace("PUBLIC KEY", "CERTIFICATE REQUEST"),
        ] {
            assert_eq!(text.parse::<PublicKey>(), Err(NotAKey::Pem), "{text:?}");
        }
        assert!(
            pem.replace("PUBLIC KEY", "CERTIFICATE")
                .parse::<PublicKey>()
                .is_err()
        );
        assert!(
            RSA_1024
                .parse::<PublicKey>()
                .is_err_and(|error| error == NotAKey::Algorithm)
        );
        assert_eq!(
            RSA_2048.parse::<PublicKey>().unwrap().algorithm(),
            KeyAlgorithm::Rsa
        );
        // Anything may come: no byte may make it panic.
        for at in 0..pem.len() {
            let mut bytes = pem.clone().into_bytes();
            bytes[at] ^= 1;
            // Either result is fine.
            let _ = String::from_utf8(bytes).map(|text| text.parse::<PublicKey>());
        }
    }

    const RSA_1024: &str = "\
-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCsYuK9Zx6o34rkIvBw5/gle5EQ
BDln9yw1pm4cw8FYwp1GlFaMX7yopRHpg66RTo0TXilQBCrWFA7kesrhVgdg+gVw
N6DCunWLDWKGQBn3QuiKEgEy7rvaGGTASu7YjeFbChgAZ55N5mC2nH2W2X1m4wK9
NnZ1tl3nDxjlW7NiFwIDAQAB
-----END PUBLIC KEY-----
";

    const RSA_2048: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAxF6lftXVKH9xEy4JUAhj
Q3AwU4i2I/J9QN/ogaO8k4OW6YwBm8OcCdmpluPeoeATuBnRoiTTDT8/Y7HRzh7n
GfWUGOQt1BvlazgeB4TnH+URnDuR7payxpmNA98NgSO6s2RdKNoj6OGoZRRiIRE6
T2xHORDQZP4Sp+M6M+rwkFii0yesiScUhmsU8cVgvoSk0Hmxh3URWJV4pFQkmAU/
PecfDFx4Khq5042qNtyct50aC+m8SKNXgFtuwRVdE2e79SSAs5EKImFNsrFo4HlD
/sZL4TWKaZbdNDfFklcIPIOyfk0UA5ppVYgiL1X9qkTyzPocwFmA8vPP5Oxdi9no
vQIDAQAB
-----END PUBLIC KEY-----
";
}
