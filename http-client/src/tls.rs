//! Trusted authorities: the system's, the config's, or any certificate if the config allows it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use instar_values::HostTls;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

/// The authorities in the root filesystem.
pub const SYSTEM_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The authorities that a client trusts, and its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// A file of authorities (PEM). It may be missing in the root filesystem.
    pub bundle: PathBuf,
    /// More authorities for all hosts (PEM).
    pub roots: Vec<String>,
    /// Settings of single hosts, by `HOST[:PORT]`.
    pub hosts: BTreeMap<String, HostTls>,
}

impl Default for Trust {
    fn default() -> Self {
        Trust {
            bundle: SYSTEM_BUNDLE.into(),
            roots: Vec::new(),
            hosts: BTreeMap::new(),
        }
    }
}

/// Why these settings allow no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The bundle cannot be read.
    #[error("the certificate authorities in {} cannot be read", bundle.display())]
    Bundle {
        /// The path.
        bundle: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// PEM text of the config is not valid.
    #[error("the {what} in the TLS settings is not usable PEM")]
    Pem {
        /// The part of the settings.
        what: &'static str,
        /// The error with its position.
        source: rustls_pki_types::pem::Error,
    },
    /// The config's client certificate and key cannot be used.
    #[error("the client identity in the TLS settings cannot be used")]
    Identity(#[source] rustls::Error),
    /// An authority's certificate cannot be used.
    #[error("a certificate authority in the TLS settings cannot be used")]
    Authority(#[source] rustls::Error),
    /// There is neither a bundle nor an authority in the config.
    #[error(
        "there is no certificate authority to trust: {} is missing and the config names none; give the host a CA in \
         RegistryTLSConfig, or add TrustedRootsConfig",
        bundle.display()
    )]
    NoRoots {
        /// The path of the missing bundle.
        bundle: PathBuf,
    },
    /// rustls cannot be set up.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}

/// The bundle's authorities and the config's. Without a bundle (a minimal root filesystem) only the config's.
fn roots(trust: &Trust) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    match std::fs::read(&trust.bundle) {
        Ok(bundle) => {
            // One invalid certificate of a large bundle is no reason to trust none.
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bundle).flatten());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(TlsError::Bundle {
                bundle: trust.bundle.clone(),
                source,
            });
        }
    }
    for pem in &trust.roots {
        add(&mut roots, pem, "trusted root")?;
    }
    Ok(roots)
}

fn add(roots: &mut RootCertStore, pem: &str, what: &'static str) -> Result<(), TlsError> {
    let mut found = false;
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|source| TlsError::Pem { what, source })?;
        roots.add(certificate).map_err(TlsError::Authority)?;
        found = true;
    }
    if found {
        Ok(())
    } else {
        Err(TlsError::Pem {
            what,
            source: rustls_pki_types::pem::Error::NoItemsFound,
        })
    }
}

/// The settings of one host for rustls.
///
/// # Errors
/// They allow no connection.
pub fn client_config(trust: &Trust, authority: &str) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let nothing = HostTls::default();
    let settings = trust.hosts.get(authority).unwrap_or(&nothing);
    let builder = if settings.insecure_skip_verify {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TakeAny(provider)))
    } else {
        let mut roots = roots(trust)?;
        if let Some(ca) = &settings.ca {
            add(&mut roots, ca, "CA")?;
        }
        if roots.is_empty() {
            return Err(TlsError::NoRoots {
                bundle: trust.bundle.clone(),
            });
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| TlsError::Setup(rustls::Error::General(error.to_string())))?;
        builder.with_webpki_verifier(verifier)
    };
    match &settings.client_identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|source| TlsError::Pem {
                    what: "client certificate",
                    source,
                })?;
            let key = PrivateKeyDer::from_pem_slice(identity.key.expose().as_bytes()).map_err(
                |source| TlsError::Pem {
                    what: "client key",
                    source,
                },
            )?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(TlsError::Identity)
        }
    }
}

/// `insecureSkipVerify`: the name is not checked, signatures of the handshake still are.
#[derive(Debug)]
struct TakeAny(Arc<CryptoProvider>);

impl ServerCertVerifier for TakeAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
