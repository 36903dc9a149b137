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

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
    use tokio::net::TcpStream;

    /// Takes any server for the right one.
    #[derive(Debug)]
    struct Any(CryptoProvider);

    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &rustls_pki_types::ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }

    /// A connection of a client that shows no certificate.
    pub(crate) async fn without_a_certificate(
        stream: TcpStream,
    ) -> tokio_rustls::client::TlsStream<TcpStream> {
        let provider = rustls::crypto::ring::default_provider();
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Any(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = rustls_pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.unwrap()
    }
}
