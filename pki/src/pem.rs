//! PEM text, as the tools of this interface write it.
//!
//! Their Ed25519 keys are PKCS#8 under the label `ED25519 PRIVATE KEY` instead of `PRIVATE KEY`. Both are read; the former is written,
//! because the other tools look for it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub(crate) const ED25519_LABEL: &str = "ED25519 PRIVATE KEY";
pub(crate) const PKCS8_LABEL: &str = "PRIVATE KEY";

/// Why PEM text does not contain the requested object.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// There is no section of that kind, or a broken one.
    #[error("no readable {wanted} in the PEM text")]
    Unreadable {
        /// The requested kind.
        wanted: &'static str,
        /// The error of the reader.
        source: rustls_pki_types::pem::Error,
    },
    /// There are only sections of other kinds.
    #[error("no {wanted} in the PEM text")]
    Missing {
        /// The requested kind.
        wanted: &'static str,
    },
}

/// Every certificate in the text, in order; at least one.
///
/// # Errors
/// There is none, or one is broken.
pub fn certificates_from_pem(text: &str) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let wanted = "certificate";
    let certificates = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| PemError::Unreadable { wanted, source })?;
    if certificates.is_empty() {
        return Err(PemError::Missing { wanted });
    }
    Ok(certificates)
}

/// DER of the first certificate in the text.
///
/// # Errors
/// There is none, or one is broken.
pub fn certificate_from_pem(text: &str) -> Result<Vec<u8>, PemError> {
    certificates_from_pem(text).map(|mut certificates| certificates.swap_remove(0).to_vec())
}

/// The first private key in the text.
///
/// # Errors
/// There is none, or it is broken.
pub fn private_key_from_pem(text: &str) -> Result<PrivateKeyDer<'static>, PemError> {
    let text = with_standard_label(text);
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|source| match source {
        rustls_pki_types::pem::Error::NoItemsFound => PemError::Missing {
            wanted: "private key",
        },
        source => PemError::Unreadable {
            wanted: "private key",
            source,
        },
    })
}

/// The same key with the label of RFC 7468, section 10, which every TLS library reads.
pub fn with_standard_label(key_pem: &str) -> String {
    key_pem.replace(ED25519_LABEL, PKCS8_LABEL)
}

/// A certificate as PEM.
pub fn certificate_to_pem(der: &CertificateDer<'_>) -> String {
    section("CERTIFICATE", der)
}

pub(crate) fn section(label: &str, der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in body.as_bytes().chunks(64) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}
