//! Checks client certificates, and reads roles from them.

use std::sync::Arc;

use anyhow::Context as _;
use instar_pki::Role;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConnection, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};

/// The roles of the connection's client.
pub(super) fn roles_of(connection: &ServerConnection) -> anyhow::Result<Vec<Role>> {
    let leaf = connection
        .peer_certificates()
        .and_then(|chain| chain.first())
        .context("the client sent no certificate")?;
    Ok(instar_pki::client_roles(leaf)?)
}

/// The certificates that the connection's client showed, its own first.
pub(super) fn certificates_of(connection: &ServerConnection) -> Arc<[CertificateDer<'static>]> {
    let shown = connection.peer_certificates().unwrap_or_default().iter();
    shown.cloned().map(CertificateDer::into_owned).collect()
}

/// Whether a client with these certificates, its own first, would be accepted now.
pub(super) fn is_clients(
    verifier: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'static>],
) -> bool {
    chain.split_first().is_some_and(|(own, others)| {
        let verified = verifier.verify_client_cert(own, others, UnixTime::now());
        verified.is_ok()
    })
}

/// Whether a client with these certificates would be accepted if only these authorities (DER) were.
///
/// # Errors
///
/// When one of them is not a valid authority.
pub fn would_let_in(
    authorities: &[Vec<u8>],
    chain: &[CertificateDer<'static>],
) -> anyhow::Result<bool> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        let authority = CertificateDer::from(authority.as_slice());
        roots.add(authority).context("add a client authority")?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(is_clients(clients_of(roots, provider)?.as_ref(), chain))
}

/// Accepts certificates of these authorities that are for clients only, as other implementations of this API do.
pub(super) fn clients_of(
    authorities: RootCertStore,
    provider: Arc<CryptoProvider>,
) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let chain = WebPkiClientVerifier::builder_with_provider(authorities.into(), provider);
    Ok(Arc::new(ClientsOnly {
        chain: chain.build()?,
    }))
}

#[derive(Debug)]
struct ClientsOnly {
    /// Makes all other checks.
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for ClientsOnly {
    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(leaf, intermediates, now)?;
        match instar_pki::client_roles(leaf) {
            Ok(_) => Ok(verified),
            Err(_) => Err(CertificateError::InvalidPurpose.into()),
        }
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, leaf, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
