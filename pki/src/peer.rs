//! Reads a certificate that a peer presented. Its chain and dates are checked by the TLS library.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::certificate::SubjectName;
use crate::role::Role;

/// Why a certificate is refused.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The bytes are not a certificate.
    #[error("not an X.509 certificate: {0}")]
    Malformed(String),
    /// Its extended key usage is not exactly client authentication.
    #[error(
        "not a client's certificate: its extended key usage must be clientAuth and nothing else"
    )]
    NotForClients,
    /// An Organization is not text.
    #[error("an Organization of the certificate is not text")]
    BadOrganization,
}

/// The roles in a client's certificate, in its order; empty names are skipped.
///
/// # Errors
/// The certificate is broken, or its extended key usage is not exactly clientAuth.
pub fn client_roles(certificate: &[u8]) -> Result<Vec<Role>, PeerError> {
    let certificate = parse(certificate)?;
    let usage = certificate
        .extended_key_usage()
        .map_err(|error| PeerError::Malformed(error.to_string()))?
        .ok_or(PeerError::NotForClients)?
        .value;
    let others = usage.any
        || usage.server_auth
        || usage.code_signing
        || usage.email_protection
        || usage.time_stamping
        || usage.ocsp_signing
        || !usage.other.is_empty();
    if !usage.client_auth || others {
        return Err(PeerError::NotForClients);
    }
    certificate
        .subject()
        .iter_organization()
        .map(|value| value.as_str().map_err(|_| PeerError::BadOrganization))
        .filter(|name| !matches!(name, Ok("")))
        .map(|name| name.map(Role::from))
        .collect()
}

/// The fingerprint of a certificate's key: standard base64 of the SHA-256 of its SubjectPublicKeyInfo.
///
/// # Errors
/// The certificate is broken.
pub fn public_key_fingerprint(certificate: &[u8]) -> Result<String, PeerError> {
    let certificate = parse(certificate)?;
    Ok(fingerprint_of(certificate.public_key().raw))
}

/// The fingerprint of a key, of its SubjectPublicKeyInfo in DER; see [`public_key_fingerprint`].
pub fn fingerprint_of(public_key_info: &[u8]) -> String {
    BASE64_STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, public_key_info))
}

pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, PeerError> {
    match parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(PeerError::Malformed("bytes after its end".to_owned())),
        Err(error) => Err(PeerError::Malformed(error.to_string())),
    }
}

/// The name in an encoded one.
pub(crate) fn name(name: &GeneralName<'_>) -> Result<SubjectName, PeerError> {
    let address = |bytes: &[u8]| -> Option<IpAddr> {
        match bytes.len() {
            4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
            _ => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        }
    };
    let name = match name {
        GeneralName::DNSName(name) => Some(SubjectName::Dns((*name).to_owned())),
        GeneralName::IPAddress(bytes) => address(bytes).map(SubjectName::Ip),
        _ => None,
    };
    name.ok_or_else(|| PeerError::Malformed("a name that is neither DNS nor address".to_owned()))
}
