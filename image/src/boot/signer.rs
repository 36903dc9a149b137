//! The signer: an RSA key and the certificate by which firmware knows it.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow, ensure};
use ring::{
    rand::SystemRandom,
    rsa::KeyPair,
    signature::{self, RSA_PKCS1_SHA256},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A key with its certificate.
pub struct Signer {
    key: KeyPair,
    certificate: Vec<u8>,
    issuer: Vec<u8>,
    serial: Vec<u8>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl Signer {
    /// Reads a key and its certificate from two files in PEM. The key must be RSA of 2048 bits or more: only RSA is
    /// sure to work with all firmware.
    ///
    /// # Errors
    /// A file cannot be read or has another content, or the two do not belong together.
    pub fn read(key: &Path, certificate: &Path) -> Result<Self> {
        let read =
            |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        Self::from_pem(&read(key)?, &read(certificate)?).with_context(|| {
            format!(
                "cannot sign with the key {} and the certificate {}",
                key.display(),
                certificate.display()
            )
        })
    }

    fn from_pem(key: &[u8], certificate: &[u8]) -> Result<Self> {
        let key = match PrivateKeyDer::from_pem_slice(key).context("no private key in PEM")? {
            PrivateKeyDer::Pkcs8(key) => KeyPair::from_pkcs8(key.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(key) => KeyPair::from_der(key.secret_pkcs1_der()),
            _ => return Err(anyhow!("the key is not an RSA key")),
        };
        let key =
            key.map_err(|error| anyhow!("the key is no RSA key of 2048 bits or more: {error}"))?;
        let certificate =
            CertificateDer::from_pem_slice(certificate).context("no certificate in PEM")?;
        let (_, parsed) = X509Certificate::from_der(&certificate).context("not a certificate")?;
        let named: &[u8] = &parsed.public_key().subject_public_key.data;
        ensure!(
            named == signature::KeyPair::public_key(&key).as_ref(),
            "the certificate is for another key"
        );
        let (issuer, serial) = (
            parsed.issuer().as_raw().to_vec(),
            parsed.tbs_certificate.raw_serial().to_vec(),
        );
        Ok(Self {
            key,
            certificate: certificate.to_vec(),
            issuer,
            serial,
        })
    }

    /// Returns the certificate in DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns the name of the certificate's issuer, in DER.
    pub(super) fn issuer(&self) -> &[u8] {
        &self.issuer
    }

    /// Returns the certificate's serial number, big endian.
    pub(super) fn serial(&self) -> &[u8] {
        &self.serial
    }

    /// Signs by PKCS#1 v1.5 with SHA-256, which has nothing random in it.
    pub(crate) fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                bytes,
                &mut signature,
            )
            .map_err(|_| anyhow!("the RSA key cannot sign"))?;
        Ok(signature)
    }
}
