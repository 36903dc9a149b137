//! A certificate and its key that were issued earlier and are to be used again.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use rustls_pki_types::PrivatePkcs8KeyDer;

use crate::authority::IssuedCertificate;
use crate::certificate::SubjectName;
use crate::key::{KeyError, PrivateKey};
use crate::peer::{self, PeerError};

/// Length of a public key on P-256, uncompressed.
const P256_POINT: usize = 65;

/// Why a certificate and its key cannot be used again.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The certificate is broken.
    #[error(transparent)]
    Certificate(#[from] PeerError),
    /// The key is broken.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Certificate and key do not belong together.
    #[error("the key does not belong to the certificate")]
    KeyMismatch,
}

impl IssuedCertificate {
    /// Reads a certificate and its key (PKCS#8), both DER. The issuer's signature is not verified: the caller has to trust the source.
    ///
    /// # Errors
    /// One of them is broken, or they do not belong together.
    pub fn from_der(certificate: Vec<u8>, key: Vec<u8>) -> Result<Self, KeptError> {
        let key = PrivateKey::from_der(PrivatePkcs8KeyDer::from(key).into())?;
        if peer::parse(&certificate)?.public_key().raw != key.public_key_info() {
            return Err(KeptError::KeyMismatch);
        }
        Ok(Self::of(certificate.into(), key))
    }
}

/// Checks that a P-256 key (PKCS#8) says that it belongs to a certificate: such a key ends with its public half. Nothing is computed, so the
/// program need not have P-256 in memory.
///
/// # Errors
/// The certificate is broken, or the key does not name its public key.
pub fn names_public_key(certificate: &[u8], key: &[u8]) -> Result<(), KeptError> {
    let certificate = peer::parse(certificate)?;
    let public = &certificate.public_key().subject_public_key.data;
    match public.len() == P256_POINT && key.len() > P256_POINT && key.ends_with(public) {
        true => Ok(()),
        false => Err(KeptError::KeyMismatch),
    }
}

/// The begin and the end of a certificate's validity.
///
/// # Errors
/// The bytes are not a certificate.
pub fn validity(certificate: &[u8]) -> Result<(SystemTime, SystemTime), PeerError> {
    let certificate = peer::parse(certificate)?;
    let validity = certificate.validity();
    let time =
        |at: i64| SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(at).unwrap_or(0));
    Ok((
        time(validity.not_before.timestamp()),
        time(validity.not_after.timestamp()),
    ))
}

/// The addresses and DNS names of a server's certificate.
///
/// # Errors
/// The bytes are not a certificate, or it has a name of another kind.
pub fn server_names(certificate: &[u8]) -> Result<BTreeSet<SubjectName>, PeerError> {
    let certificate = peer::parse(certificate)?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| PeerError::Malformed(error.to_string()))?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    names.map(peer::name).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::authority::CertificateAuthority;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_certificate_that_was_issued_comes_back_with_its_names_and_dates() {
        let now = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let authority = CertificateAuthority::generate(now).unwrap();
        let names: Vec<SubjectName> = ["192.0.2.7", "2001:db8::7", "node-1"]
            .map(Into::into)
            .into();
        let issued = authority.issue_server(&names, now, DAY).unwrap();
        let (certificate, key) = (issued.der().to_vec(), issued.key_der().to_vec());
        assert_eq!(
            server_names(&certificate).unwrap(),
            names.into_iter().collect()
        );
        let (begin, end) = validity(&certificate).unwrap();
        assert!(begin < now && end == now + DAY);
        names_public_key(&certificate, &key).unwrap();
        let again = IssuedCertificate::from_der(certificate, key).unwrap();
        assert_eq!(again.fingerprint(), issued.fingerprint());
    }

    #[test]
    fn a_key_of_another_certificate_and_broken_bytes_are_refused() {
        let now = SystemTime::now();
        let authority = CertificateAuthority::generate(now).unwrap();
        let issue = || authority.issue_client(&[], now, DAY).unwrap();
        let (one, other) = (issue(), issue());
        let read = |certificate: &[u8], key: &[u8]| {
            IssuedCertificate::from_der(certificate.to_vec(), key.to_vec())
        };
        assert!(read(one.der(), one.key_der()).is_ok());
        assert!(matches!(
            read(one.der(), other.key_der()),
            Err(KeptError::KeyMismatch)
        ));
        assert!(matches!(read(one.der(), b"no key"), Err(KeptError::Key(_))));
        assert!(matches!(
            read(b"none", one.key_der()),
            Err(KeptError::Certificate(_))
        ));
        let server = || {
            authority
                .issue_server(&["node-1".into()], now, DAY)
                .unwrap()
        };
        for key in [server().key_der(), one.key_der(), b"no key"] {
            assert!(names_public_key(server().der(), key).is_err());
        }
        assert!(names_public_key(one.der(), one.key_der()).is_err());
        assert!(server_names(b"none").is_err() && validity(b"none").is_err());
    }
}
