//! Private keys that sign certificates.

use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

use crate::pem::{self, PemError};
use crate::{der, sec1};

/// PKCS#8 version 1 of an Ed25519 key up to its seed (RFC 8410 §7). Older tools refuse version 2, which ring writes.
const ED25519_PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Why a private key cannot be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text contains no key.
    #[error("cannot read the private key")]
    Pem(#[from] PemError),
    /// The key is of an unsupported kind.
    #[error(
        "unusable private key: it must be Ed25519, ECDSA on P-256 or P-384, or RSA of 2048 bits or more"
    )]
    Unsupported,
    /// The system has no random bytes.
    #[error("the system gives no random bytes")]
    Random,
    /// The signature failed.
    #[error("cannot sign with this key")]
    Sign,
}

/// A private key. Its `Debug` shows the kind only.
pub struct PrivateKey {
    der: PrivateKeyDer<'static>,
    signer: Signer,
}

enum Signer {
    Ed25519(Ed25519KeyPair),
    EcdsaP256(EcdsaKeyPair),
    EcdsaP384(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl PrivateKey {
    /// Makes an Ed25519 key.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate() -> Result<Self, KeyError> {
        let mut pkcs8 = ED25519_PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(&random::<32>()?);
        Self::from_der(PrivatePkcs8KeyDer::from(pkcs8).into())
    }

    /// Makes an ECDSA key on P-256, which every TLS client accepts from a server: BoringSSL's do not accept Ed25519.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate_p256() -> Result<Self, KeyError> {
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new())
            .map_err(|_| KeyError::Random)?;
        Self::from_der(PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec()).into())
    }

    /// The same in the older format with the label `EC PRIVATE KEY`, which the tools of Kubernetes and Talos use.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate_p256_sec1() -> Result<Self, KeyError> {
        let key = Self::generate_p256()?;
        let sec1 = sec1::from_p256_pkcs8(key.secret_der(), key.public_key());
        Self::from_der(PrivateSec1KeyDer::from(sec1.ok_or(KeyError::Unsupported)?).into())
    }

    /// The first key in PEM text, whatever its label.
    ///
    /// # Errors
    /// There is none, or its kind is not supported.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        Self::from_der(pem::private_key_from_pem(text)?)
    }

    pub(crate) fn from_der(der: PrivateKeyDer<'static>) -> Result<Self, KeyError> {
        let signer = match &der {
            PrivateKeyDer::Pkcs8(key) => Signer::from_pkcs8(key.secret_pkcs8_der()),
            PrivateKeyDer::Sec1(key) => {
                sec1::to_pkcs8(key.secret_sec1_der()).and_then(|pkcs8| Signer::from_pkcs8(&pkcs8))
            }
            PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der())
                .ok()
                .map(Signer::Rsa),
            _ => None,
        };
        Ok(Self {
            der,
            signer: signer.ok_or(KeyError::Unsupported)?,
        })
    }

    /// The key for a TLS library.
    pub fn to_der(&self) -> PrivateKeyDer<'static> {
        self.der.clone_key()
    }

    pub(crate) fn secret_der(&self) -> &[u8] {
        self.der.secret_der()
    }

    /// The key as PEM, in the format that it was read in.
    pub fn to_pem(&self) -> String {
        let label = match (&self.der, &self.signer) {
            (_, Signer::Ed25519(_)) => pem::ED25519_LABEL,
            (PrivateKeyDer::Sec1(_), _) => "EC PRIVATE KEY",
            (PrivateKeyDer::Pkcs1(_), _) => "RSA PRIVATE KEY",
            _ => pem::PKCS8_LABEL,
        };
        pem::section(label, self.der.secret_der())
    }

    /// The public half as a SubjectPublicKeyInfo.
    pub fn public_key_info(&self) -> Vec<u8> {
        let elliptic = |curve| {
            vec![
                der::object_id(der::oid::EC_PUBLIC_KEY),
                der::object_id(curve),
            ]
        };
        let algorithm = match &self.signer {
            Signer::Ed25519(_) => vec![der::object_id(der::oid::ED25519)],
            Signer::EcdsaP256(_) => elliptic(der::oid::P256),
            Signer::EcdsaP384(_) => elliptic(der::oid::P384),
            Signer::Rsa(_) => vec![der::object_id(der::oid::RSA), der::null()],
        };
        der::sequence(&[
            &der::value(0x30, &algorithm.concat()),
            &der::bit_string(self.public_key()),
        ])
    }

    /// The bare public key: point, bytes or RSAPublicKey.
    pub(crate) fn public_key(&self) -> &[u8] {
        match &self.signer {
            Signer::Ed25519(key) => key.public_key().as_ref(),
            Signer::EcdsaP256(key) | Signer::EcdsaP384(key) => key.public_key().as_ref(),
            Signer::Rsa(key) => key.public_key().as_ref(),
        }
    }

    /// AlgorithmIdentifier of the signatures.
    pub(crate) fn signature_algorithm(&self) -> Vec<u8> {
        match &self.signer {
            Signer::Ed25519(_) => der::sequence(&[&der::object_id(der::oid::ED25519)]),
            Signer::EcdsaP256(_) => der::sequence(&[&der::object_id(der::oid::ECDSA_SHA256)]),
            Signer::EcdsaP384(_) => der::sequence(&[&der::object_id(der::oid::ECDSA_SHA384)]),
            Signer::Rsa(_) => der::sequence(&[&der::object_id(der::oid::RSA_SHA256), &der::null()]),
        }
    }

    /// The public half as PEM, as cosign and openssl write it.
    pub fn public_key_pem(&self) -> String {
        pem::section("PUBLIC KEY", &self.public_key_info())
    }

    /// Signs a message, in the form that [`crate::is_signature`] checks.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = SystemRandom::new();
        match &self.signer {
            Signer::Ed25519(key) => Ok(key.sign(message).as_ref().to_vec()),
            Signer::EcdsaP256(key) | Signer::EcdsaP384(key) => key
                .sign(&random, message)
                .map(|signature| signature.as_ref().to_vec())
                .map_err(|_| KeyError::Sign),
            Signer::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(|_| KeyError::Sign)?;
                Ok(signature)
            }
        }
    }
}

impl Signer {
    /// Detects the kind of the key; each parser refuses the algorithms of others.
    fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        let random = SystemRandom::new();
        if let Ok(key) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8) {
            return Some(Self::Ed25519(key));
        }
        if let Ok(key) = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &random) {
            return Some(Self::EcdsaP256(key));
        }
        if let Ok(key) = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_ASN1_SIGNING, pkcs8, &random) {
            return Some(Self::EcdsaP384(key));
        }
        RsaKeyPair::from_pkcs8(pkcs8).ok().map(Self::Rsa)
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.signer {
            Signer::Ed25519(_) => "PrivateKey(Ed25519)",
            Signer::EcdsaP256(_) => "PrivateKey(P-256)",
            Signer::EcdsaP384(_) => "PrivateKey(P-384)",
            Signer::Rsa(_) => "PrivateKey(RSA)",
        })
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| KeyError::Random)?;
    Ok(bytes)
}
