//! The digests of the part of a certificate that its issuer signed: the firmware's list of revocations names certificates by them.

use ring::digest::{Algorithm, Digest, SHA256, SHA384, SHA512, digest};
use x509_parser::parse_x509_certificate;

/// The digest of the part of a certificate that its issuer signed.
pub struct SignedPart {
    part: Vec<u8>,
}

/// The algorithm of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sha {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl SignedPart {
    /// The signed part of a certificate (DER); none if it is broken. Bytes after its end do not hide it from a revocation.
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        let part = parsed.tbs_certificate.as_ref().to_vec();
        Some(SignedPart { part })
    }

    /// Whether these bytes begin with its digest.
    pub fn begins(&self, bytes: &[u8], sha: Sha) -> bool {
        bytes.starts_with(self.digest(sha).as_ref())
    }

    /// Its digest.
    pub fn digest(&self, sha: Sha) -> Digest {
        let algorithm: &'static Algorithm = match sha {
            Sha::Sha256 => &SHA256,
            Sha::Sha384 => &SHA384,
            Sha::Sha512 => &SHA512,
        };
        digest(algorithm, &self.part)
    }
}
