//! TLS without authentication of either side, as with `--insecure`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::connect::until_connected;
use crate::node::notices_silence;

/// Connects to `HOST:PORT`.
pub(super) async fn connect(endpoint: &str) -> anyhow::Result<Channel> {
    // The endpoint does not know that its connector speaks TLS.
    let origin: Uri = format!("https://{endpoint}").parse()?;
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?.origin(origin);
    let endpoint = notices_silence(endpoint);
    let connector = Insecure::new()?;
    let channel = until_connected(|| {
        let (endpoint, connector) = (endpoint.clone(), connector.clone());
        async move { endpoint.connect_with_connector(connector).await }
    });
    Ok(channel.await?)
}

#[derive(Clone)]
struct Insecure(TlsConnector);

impl Insecure {
    fn new() -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

impl Service<Uri> for Insecure {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move {
            let authority = to.authority().map_or("", |authority| authority.as_str());
            let tcp = TcpStream::connect(authority).await?;
            let name = ServerName::IpAddress(tcp.peer_addr()?.ip().into());
            Ok(TokioIo::new(connector.connect(name, tcp).await?))
        })
    }
}

/// Accepts any certificate of any server.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
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
