//! Requests for certificates (PKCS#10, RFC 2986): a machine without the authority's key makes one for its own key, and a machine with the
//! authority's key reads it. Only the key and the server's names count; who the request says that it is does not.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer as _;

use crate::certificate::{self, SubjectName};
use crate::der;
use crate::key::{KeyError, PrivateKey};
use crate::peer;
use crate::pem;

/// The label of a request in PEM.
const LABEL: &str = "CERTIFICATE REQUEST";
/// Size limit of a request, in bytes of PEM: names and an RSA key of 8,192 bits are far below.
const LONGEST: usize = 64 << 10;
/// Limit on the names of a request.
const MOST_NAMES: usize = 64;
/// Limit on the length of a DNS name (RFC 1035).
const LONGEST_NAME: usize = 253;

/// Why a request is not signed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It is not PEM.
    #[error("no readable certificate request in the PEM text")]
    Pem,
    /// It is broken, or its signature is.
    #[error("the certificate request is broken: {0}")]
    Malformed(String),
    /// Its signature is not by the key that it names.
    #[error("the certificate request is not signed by its own key")]
    NotItsKey,
    /// It has no name, or too many, or a name that no server may have.
    #[error("the certificate request has {0}")]
    Names(String),
}

/// A request whose signature was checked: its sender has the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRequest {
    /// The key, as a SubjectPublicKeyInfo.
    pub(crate) public_key_info: Vec<u8>,
    /// The same without its algorithm.
    pub(crate) public_key: Vec<u8>,
    /// The names that the server asks for.
    pub names: Vec<SubjectName>,
}

impl ServerRequest {
    /// Reads and checks a request in PEM.
    ///
    /// # Errors
    /// It is broken, not signed by its own key, or has names that no certificate of a server may have.
    pub fn from_pem(text: &str) -> Result<Self, RequestError> {
        Self::from_der(&to_der(text).ok_or(RequestError::Pem)?)
    }

    /// The fingerprint of its key, see [`crate::public_key_fingerprint`].
    pub fn fingerprint(&self) -> String {
        peer::fingerprint_of(&self.public_key_info)
    }

    fn from_der(request: &[u8]) -> Result<Self, RequestError> {
        let malformed = |error: &dyn std::fmt::Display| RequestError::Malformed(error.to_string());
        let (rest, request) =
            X509CertificationRequest::from_der(request).map_err(|error| malformed(&error))?;
        if !rest.is_empty() {
            return Err(malformed(&"bytes after its end"));
        }
        request
            .verify_signature()
            .map_err(|_| RequestError::NotItsKey)?;
        let mut names = Vec::new();
        for extension in request.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(given) = extension {
                for given in &given.general_names {
                    names.push(peer::name(given).map_err(|error| malformed(&error))?);
                }
            }
        }
        check(&names)?;
        let key = &request.certification_request_info.subject_pki;
        Ok(ServerRequest {
            public_key_info: key.raw.to_vec(),
            public_key: key.subject_public_key.data.to_vec(),
            names,
        })
    }
}

/// Checks that a certificate of a server may have these names.
fn check(names: &[SubjectName]) -> Result<(), RequestError> {
    if names.is_empty() || names.len() > MOST_NAMES {
        let count = names.len();
        return Err(RequestError::Names(format!(
            "{count} names; 1 to {MOST_NAMES} are allowed"
        )));
    }
    let is_plain = |name: &str| {
        let bytes = name.bytes();
        (1..=LONGEST_NAME).contains(&name.len())
            && bytes
                .into_iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    for name in names {
        match name {
            SubjectName::Dns(name) if !is_plain(name) => {
                let shown: String = name.chars().take(64).collect();
                return Err(RequestError::Names(format!(
                    "the name {shown:?}, which is not the name of one host"
                )));
            }
            SubjectName::Ip(address) if address.is_unspecified() || address.is_multicast() => {
                return Err(RequestError::Names(format!(
                    "the address {address}, which is not the address of one host"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes a request for a server's certificate in PEM: for this key, with these names.
///
/// # Errors
/// The key fails.
pub fn request_for_server(key: &PrivateKey, names: &[SubjectName]) -> Result<String, KeyError> {
    let names: Vec<u8> = names.iter().flat_map(certificate::general_name).collect();
    let names =
        certificate::extension(der::oid::SUBJECT_ALT_NAME, false, &der::value(0x30, &names));
    let extensions = der::sequence(&[
        &der::object_id(der::oid::EXTENSION_REQUEST),
        &der::set_of(&[der::sequence(&[&names])]),
    ]);
    let to_be_signed = der::sequence(&[
        &der::unsigned(&[0]),
        &certificate::subject(&[], Some("machine")),
        &key.public_key_info(),
        &der::implicit_set_of(0, &[extensions]),
    ]);
    let signature = der::bit_string(&key.sign(&to_be_signed)?);
    let request = der::sequence(&[&to_be_signed, &key.signature_algorithm(), &signature]);
    Ok(pem::section(LABEL, &request))
}

/// The content of the first section with a request.
fn to_der(text: &str) -> Option<Vec<u8>> {
    if text.len() > LONGEST {
        return None;
    }
    let (begin, end) = (
        format!("-----BEGIN {LABEL}-----"),
        format!("-----END {LABEL}-----"),
    );
    let (_, rest) = text.split_once(&begin)?;
    let (body, _) = rest.split_once(&end)?;
    let body: String = body.split_ascii_whitespace().collect();
    BASE64_STANDARD.decode(body).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::authority::CertificateAuthority;
    use crate::{client_roles, server_names};
    use std::time::{Duration, SystemTime};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn names(names: &[&str]) -> Vec<SubjectName> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn a_request_becomes_the_certificate_of_a_server_and_no_more() {
        let now = SystemTime::now();
        let asked = names(&["192.0.2.7", "fd00::7", "worker-1"]);
        for key in [
            PrivateKey::generate().unwrap(),
            PrivateKey::generate_p256().unwrap(),
        ] {
            let request = request_for_server(&key, &asked).unwrap();
            let request = ServerRequest::from_pem(&request).unwrap();
            assert_eq!(request.names, asked);
            let authority = CertificateAuthority::generate(now).unwrap();
            let issued = authority.sign_server(&request, now, DAY).unwrap();
            assert_eq!(
                server_names(&issued).unwrap(),
                asked.iter().cloned().collect()
            );
            client_roles(&issued).unwrap_err();
            assert_eq!(
                crate::public_key_fingerprint(&issued).unwrap(),
                peer::fingerprint_of(&key.public_key_info())
            );
        }
    }

    #[test]
    fn requests_of_other_tools_are_read_and_their_organization_is_dropped() {
        let mut parameters =
            rcgen::CertificateParams::new(vec!["worker-1".to_owned(), "10.0.0.7".to_owned()])
                .unwrap();
        let name = &mut parameters.distinguished_name;
        name.push(rcgen::DnType::OrganizationName, "os:admin");
        parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        let text = parameters.serialize_request(&key).unwrap().pem().unwrap();
        let request = ServerRequest::from_pem(&text).unwrap();
        assert_eq!(request.names, names(&["worker-1", "10.0.0.7"]));
        let now = SystemTime::now();
        let authority = CertificateAuthority::generate(now).unwrap();
        let issued = authority.sign_server(&request, now, DAY).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&issued).unwrap();
        assert!(!parsed.subject().to_string().contains("os:admin"));
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth && !parsed.is_ca());
        client_roles(&issued).unwrap_err();
    }

    #[test]
    fn who_does_not_have_the_key_gets_nothing() {
        let key = PrivateKey::generate().unwrap();
        let request = request_for_server(&key, &names(&["worker-1"])).unwrap();
        let der = to_der(&request).unwrap();
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = der.clone();
            change(&mut changed);
            ServerRequest::from_der(&changed)
        };
        assert!(with(&|_| {}).is_ok());
        let other = with(&|der| {
            let at = der.windows(8).position(|part| part == b"worker-1").unwrap();
            der[at + 7] = b'2';
        });
        assert!(matches!(other, Err(RequestError::NotItsKey)), "{other:?}");
        assert!(with(&|der| der.push(0)).is_err());
        assert!(with(&|der| der.truncate(40)).is_err());
        assert!(ServerRequest::from_pem("none").is_err());
    }

    #[test]
    fn names_that_are_no_hosts_are_refused() {
        let key = PrivateKey::generate().unwrap();
        let read = |asked: &[SubjectName]| {
            ServerRequest::from_pem(&request_for_server(&key, asked).unwrap())
        };
        for bad in ["*.example.org", "", "a b", "0.0.0.0", "::", "224.0.0.1"] {
            let refused = read(&names(&["worker-1", bad]));
            assert!(matches!(refused, Err(RequestError::Names(_))), "{bad}");
        }
        assert!(read(&[]).is_err());
        let many: Vec<SubjectName> = (0..=MOST_NAMES)
            .map(|number| SubjectName::Dns(format!("host-{number}")))
            .collect();
        assert!(read(&many).is_err() && read(&many[1..]).is_ok());
        assert!(read(&[SubjectName::Dns("x".repeat(254))]).is_err());
    }
}
