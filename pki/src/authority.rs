//! The machine's certificate authority.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::ParsedExtension;
use x509_parser::parse_x509_certificate;

use crate::certificate::{self, Purpose, SubjectName, Template, Validity, ValidityError};
use crate::key::{KeyError, PrivateKey};
use crate::peer;
use crate::pem::{self, PemError};
use crate::request::ServerRequest;
use crate::role::Role;

/// Lifetime of a new authority: 10 years.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(87_600 * 3600);

/// Organization of the authority's subject, as other tools of this interface write it.
const AUTHORITY_ORGANIZATION: &str = "talos";

/// Why an authority cannot be loaded or cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate's PEM is not valid.
    #[error("cannot read the authority's certificate")]
    Certificate(#[from] PemError),
    /// The certificate's bytes are not valid.
    #[error("the authority's certificate is no X.509: {0}")]
    Malformed(String),
    /// The certificate may not sign others.
    #[error("not the certificate of an authority: its basic constraints don't say so")]
    NotAnAuthority,
    /// The key is not valid, or a signature failed.
    #[error("the authority's key does not work")]
    Key(#[from] KeyError),
    /// Certificate and key belong to different authorities.
    #[error(
        "the authority's key does not belong to its certificate; take both from the same configuration"
    )]
    KeyMismatch,
    /// The dates are out of range.
    #[error("cannot date the certificate")]
    Validity(#[from] ValidityError),
    /// A server certificate has no names.
    #[error("a server certificate needs at least one address or name")]
    NoNames,
    /// A name is not ASCII, so it cannot be in a certificate.
    #[error("{0:?} is no DNS name; write it in its ASCII form")]
    BadName(String),
}

/// A certificate that the authority signed, with the private key that was made for it.
#[derive(Debug)]
pub struct IssuedCertificate {
    certificate: CertificateDer<'static>,
    key: PrivateKey,
}

impl IssuedCertificate {
    /// A certificate with its own key.
    pub(crate) fn of(certificate: CertificateDer<'static>, key: PrivateKey) -> Self {
        Self { certificate, key }
    }

    /// The certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its key, PKCS#8.
    pub fn key_der(&self) -> &[u8] {
        self.key.secret_der()
    }

    /// The certificate as PEM.
    pub fn pem(&self) -> String {
        pem::certificate_to_pem(&self.certificate)
    }

    /// Its key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// The fingerprint of its key, see [`crate::public_key_fingerprint`].
    pub fn fingerprint(&self) -> String {
        peer::fingerprint_of(&self.key.public_key_info())
    }
}

/// An authority: signs certificates of servers and clients.
#[derive(Debug)]
pub struct CertificateAuthority {
    certificate: CertificateDer<'static>,
    key: PrivateKey,
    /// The encoded name, copied into the certificates that it issues: verifiers compare bytes.
    subject: Vec<u8>,
    key_id: Option<Vec<u8>>,
}

impl CertificateAuthority {
    /// Makes an authority with an Ed25519 key, for ten years.
    ///
    /// # Errors
    /// The system has no random bytes, or the clock is out of range.
    pub fn generate(now: SystemTime) -> Result<Self, AuthorityError> {
        let subject = certificate::subject(&[AUTHORITY_ORGANIZATION], None);
        Self::generate_as(subject, PrivateKey::generate()?, now)
    }

    /// Makes an authority for Kubernetes or etcd, with an ECDSA key on P-256 as their tools expect, for ten years.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn generate_p256(
        organizations: &[&str],
        common_name: Option<&str>,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let subject = certificate::subject(organizations, common_name);
        Self::generate_as(subject, PrivateKey::generate_p256_sec1()?, now)
    }

    fn generate_as(
        subject: Vec<u8>,
        key: PrivateKey,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let key_id = certificate::key_id(key.public_key());
        let certificate = Template {
            purpose: Purpose::Authority,
            issuer: &subject,
            subject: &subject,
            validity: Validity::of_authority(now, AUTHORITY_LIFETIME)?,
            public_key_info: &key.public_key_info(),
            key_id: &key_id,
            authority_key_id: None,
        }
        .sign(&key)?;
        Ok(Self {
            certificate,
            key,
            subject,
            key_id: Some(key_id),
        })
    }

    /// Loads an authority from a configuration.
    ///
    /// # Errors
    /// The text is unreadable, the certificate is not an authority's, or the key does not belong to it.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let certificate = pem::certificates_from_pem(certificate)?.swap_remove(0);
        let key = PrivateKey::from_pem(key)?;
        let (_, parsed) = parse_x509_certificate(&certificate)
            .map_err(|error| AuthorityError::Malformed(error.to_string()))?;
        if !parsed.is_ca() {
            return Err(AuthorityError::NotAnAuthority);
        }
        if parsed.public_key().raw != key.public_key_info() {
            return Err(AuthorityError::KeyMismatch);
        }
        let subject = parsed.subject().as_raw().to_vec();
        let key_id =
            parsed
                .extensions()
                .iter()
                .find_map(|extension| match extension.parsed_extension() {
                    ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                    _ => None,
                });
        Ok(Self {
            certificate,
            key,
            subject,
            key_id,
        })
    }

    /// Its certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its certificate as PEM.
    pub fn certificate_pem(&self) -> String {
        pem::certificate_to_pem(&self.certificate)
    }

    /// Its key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// Issues a client's certificate: its Organizations are the roles, in order.
    ///
    /// # Errors
    /// The system has no random bytes, the dates are out of range, or the authority's key fails.
    pub fn issue_client(
        &self,
        roles: &[Role],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let roles: Vec<&str> = roles.iter().map(Role::as_str).collect();
        self.issue(
            PrivateKey::generate()?,
            Purpose::Client,
            &certificate::subject(&roles, None),
            Validity::starting(now, lifetime)?,
        )
    }

    /// Issues a server's certificate for these names, each as clients type it.
    ///
    /// # Errors
    /// There is no name or an invalid one, the system has no random bytes, or the authority's key fails.
    pub fn issue_server(
        &self,
        names: &[SubjectName],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<IssuedCertificate, AuthorityError> {
        self.issue_server_for(PrivateKey::generate_p256()?, names, now, lifetime)
    }

    /// The same for an existing key, which keeps its fingerprint.
    ///
    /// # Errors
    /// As [`Self::issue_server`].
    pub fn issue_server_for(
        &self,
        key: PrivateKey,
        names: &[SubjectName],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<IssuedCertificate, AuthorityError> {
        if names.is_empty() {
            return Err(AuthorityError::NoNames);
        }
        check_names(names)?;
        self.issue(
            key,
            Purpose::Server(names),
            &server_subject(),
            Validity::starting(now, lifetime)?,
        )
    }

    /// Signs a server's request: for its key and its names. Its subject is ours, whatever the request says.
    ///
    /// # Errors
    /// The dates are out of range, or the authority's key fails.
    pub fn sign_server(
        &self,
        request: &ServerRequest,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let template = Template {
            purpose: Purpose::Server(&request.names),
            issuer: &self.subject,
            subject: &server_subject(),
            validity: Validity::starting(now, lifetime)?,
            public_key_info: &request.public_key_info,
            key_id: &certificate::key_id(&request.public_key),
            authority_key_id: self.key_id.as_deref(),
        };
        Ok(template.sign(&self.key)?)
    }

    /// Issues a certificate for a part of a Kubernetes cluster, with an ECDSA key on P-256: a client's, or with names that of a server which is a
    /// client as well.
    ///
    /// # Errors
    /// A name is invalid, the system has no random bytes, or the authority's key fails.
    pub fn issue_for_cluster(
        &self,
        common_name: &str,
        organizations: &[&str],
        names: &[SubjectName],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<IssuedCertificate, AuthorityError> {
        check_names(names)?;
        let purpose = match names {
            [] => Purpose::Client,
            names => Purpose::Peer(names),
        };
        self.issue(
            PrivateKey::generate_p256()?,
            purpose,
            &certificate::subject(organizations, Some(common_name)),
            Validity::starting(now, lifetime)?,
        )
    }

    fn issue(
        &self,
        key: PrivateKey,
        purpose: Purpose<'_>,
        subject: &[u8],
        validity: Validity,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let certificate = Template {
            purpose,
            issuer: &self.subject,
            subject,
            validity,
            public_key_info: &key.public_key_info(),
            key_id: &certificate::key_id(key.public_key()),
            authority_key_id: self.key_id.as_deref(),
        }
        .sign(&self.key)?;
        Ok(IssuedCertificate { certificate, key })
    }
}

/// The subject of a server's certificate.
fn server_subject() -> Vec<u8> {
    certificate::subject(&[AUTHORITY_ORGANIZATION], Some("machine"))
}

fn check_names(names: &[SubjectName]) -> Result<(), AuthorityError> {
    for name in names {
        match name {
            SubjectName::Dns(name)
                if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) =>
            {
                return Err(AuthorityError::BadName(name.clone()));
            }
            _ => {}
        }
    }
    Ok(())
}
