//! A TLS client that offers exactly what a test chooses, and reports the negotiated parameters or the refusal.

use std::fmt;
use std::io;
use std::sync::Arc;

use anyhow::{Context, Result};
use instar_pki::{certificates_from_pem, private_key_from_pem};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, SupportedKxGroup, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedCipherSuite, SupportedProtocolVersion,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::identity::Identity;

/// The client's offer; each list has the most wanted first. It resumes no session.
#[derive(Debug, Clone)]
pub struct TlsClient {
    /// Versions of TLS.
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// Key exchanges.
    pub groups: Vec<&'static dyn SupportedKxGroup>,
    /// Cipher suites.
    pub suites: Vec<SupportedCipherSuite>,
    /// Protocols inside TLS (ALPN).
    pub protocols: Vec<&'static str>,
    /// The client's certificate and key, PEM.
    pub certificate: Option<(String, String)>,
    /// The authorities of the servers that the client accepts, PEM; it accepts any server if this is empty.
    pub authorities: String,
    /// The server's name. A name is sent (SNI), an address is not.
    pub name: String,
}

impl TlsClient {
    /// Returns a usual client of HTTP/2 with this identity, for a node on this host.
    pub fn of(identity: &Identity) -> Self {
        let provider = ring::default_provider();
        Self {
            versions: vec![&TLS13, &TLS12],
            groups: provider.kx_groups,
            suites: provider.cipher_suites,
            protocols: vec!["h2"],
            certificate: Some((identity.certificate.clone(), identity.key.clone())),
            authorities: identity.trusted().to_owned(),
            name: "127.0.0.1".to_owned(),
        }
    }

    /// Removes the client's certificate.
    pub fn without_certificate(self) -> Self {
        Self {
            certificate: None,
            ..self
        }
    }

    /// Accepts any server, e.g. a node without a config.
    pub fn believing_anybody(self) -> Self {
        Self {
            authorities: String::new(),
            ..self
        }
    }

    /// Restricts the client to one version of TLS.
    pub fn in_version(&self, version: &'static SupportedProtocolVersion) -> Self {
        Self {
            versions: vec![version],
            ..self.clone()
        }
    }

    /// Returns the client's config for the TLS library.
    pub fn config(&self) -> Result<ClientConfig> {
        let provider = CryptoProvider {
            kx_groups: self.groups.clone(),
            cipher_suites: self.suites.clone(),
            ..ring::default_provider()
        };
        let provider = Arc::new(provider);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&self.versions)?;
        let builder = match self.authorities.is_empty() {
            false => builder.with_root_certificates(roots(&self.authorities)?),
            true => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        };
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder.with_client_auth_cert(
                certificates_from_pem(certificate)?,
                private_key_from_pem(key)?,
            )?,
        };
        let protocols = self.protocols.iter();
        config.alpn_protocols = protocols.map(|name| name.as_bytes().to_vec()).collect();
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Shakes hands with the server. In TLS 1.3 this is over before the server has judged the client's certificate.
    pub async fn connect(&self, endpoint: &str) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config().map_err(io::Error::other)?;
        self.connect_by(Arc::new(config), endpoint).await
    }

    /// As [`Self::connect`], with a changed [`Self::config`], or with one that was used before.
    pub async fn connect_by(
        &self,
        config: Arc<ClientConfig>,
        endpoint: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(self.name.clone()).map_err(io::Error::other)?;
        let stream = TcpStream::connect(endpoint).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(config).connect(name, stream).await
    }
}

/// Accepts any certificate whose key the server has.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Parses certificates of authorities from PEM, for the TLS library.
pub fn roots(authorities: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in certificates_from_pem(authorities)? {
        roots.add(authority).context("add an authority")?;
    }
    Ok(roots)
}

/// The way in which the other side ended a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With an alert.
    Alert(AlertDescription),
    /// With an orderly close.
    Leave,
    /// Without an alert or a close.
    Silence(io::ErrorKind),
}

impl End {
    /// Returns the end that an error of the connection means; `None` if the other side did not end it.
    pub fn of(error: &io::Error) -> Option<Self> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        match (inner, error.kind()) {
            (Some(rustls::Error::AlertReceived(alert)), _) => Some(Self::Alert(*alert)),
            (None, kind @ (BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)) => {
                Some(Self::Silence(kind))
            }
            _ => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alert(alert) => write!(f, "ended by the alert {alert:?}"),
            Self::Leave => f.write_str("ended by a close_notify"),
            Self::Silence(kind) => write!(f, "ended without an alert ({kind})"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, SystemTime};

    use instar_pki::CertificateAuthority;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{HandshakeKind, ServerConfig};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Sends a byte to each client, and lets clients resume their sessions.
    async fn serve(listener: TcpListener, identity: &Identity) {
        let (certificate, key) = (identity.authority_certificate(), identity.authority_key());
        let authority = CertificateAuthority::from_pem(&certificate, &key).unwrap();
        let (now, lifetime) = (SystemTime::now(), Duration::from_secs(60));
        let names = ["127.0.0.1".into()];
        let issued = authority.issue_server(&names, now, lifetime).unwrap();
        let key = PrivatePkcs8KeyDer::from(issued.key_der().to_vec());
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.der().clone()], key.into())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = acceptor.accept(stream).await {
                stream.write_all(b"x").await.unwrap();
                stream.shutdown().await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_session_is_resumed_where_both_sides_would() {
        let identity = Identity::administrator().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let asked = async {
            for version in [&TLS13, &TLS12] {
                let client = TlsClient::of(&identity).in_version(version);
                let never = client.config().unwrap();
                let mut would = never.clone();
                would.resumption = Resumption::in_memory_sessions(8);
                for (config, second) in [
                    (never, HandshakeKind::Full),
                    (would, HandshakeKind::Resumed),
                ] {
                    let config = Arc::new(config);
                    for wanted in [HandshakeKind::Full, second] {
                        let stream = client.connect_by(config.clone(), &endpoint).await;
                        let mut stream = stream.unwrap();
                        assert_eq!(stream.read_u8().await.unwrap(), b'x');
                        assert_eq!(stream.get_ref().1.handshake_kind(), Some(wanted));
                    }
                }
            }
        };
        tokio::select! {
            () = asked => {}
            () = serve(listener, &identity) => {}
        }
    }

    #[tokio::test]
    async fn what_it_refuses_itself_is_no_end_by_the_other_side() {
        let identity = Identity::administrator().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let client = TlsClient::of(&identity);
        let elsewhere = TlsClient {
            name: "127.0.0.2".to_owned(),
            ..client.clone()
        };
        let other = TlsClient {
            protocols: vec!["http/1.1"],
            ..client
        };
        let asked = async {
            let error = elsewhere.connect(&endpoint).await.unwrap_err();
            assert_eq!(End::of(&error), None, "{error}");
            let error = other.connect(&endpoint).await.unwrap_err();
            let refused = End::Alert(AlertDescription::NoApplicationProtocol);
            assert_eq!(End::of(&error), Some(refused), "{error}");
        };
        tokio::select! {
            () = asked => {}
            () = serve(listener, &identity) => {}
        }
    }
}
