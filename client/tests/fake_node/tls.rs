//! The node's side of mutual TLS, under tonic.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use instar_pki::{CertificateAuthority, SubjectName};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// The node's TLS settings: requires a client certificate of the authority, as a node in normal mode does.
pub fn server_config(authority: &CertificateAuthority, names: &[SubjectName]) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .unwrap();
    let issued = authority
        .issue_server(names, SystemTime::now(), Duration::from_secs(24 * 3600))
        .unwrap();
    let key = PrivatePkcs8KeyDer::from(issued.key_der().to_vec());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![issued.der().clone()], key.into())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Accepts connections and completes the handshake.
pub fn accept(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(tls);
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(tcp).await
                && sender.send(Ok(Connection(stream))).await.is_err()
            {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// A TLS stream as tonic needs it.
pub struct Connection(TlsStream<TcpStream>);

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
