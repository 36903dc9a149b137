//! The node as a client of its own API: a call over mutual TLS, as every other client makes it.
//!
//! A process that runs proves little; an answer proves certificate, key, sandbox, proxy and machined's socket at once.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// The cheapest call: any reader may make it.
const METHOD: &str = "/machine.MachineService/Version";
/// A gRPC message of no bytes: not compressed, length 0.
const EMPTY_MESSAGE: Bytes = Bytes::from_static(&[0; 5]);

/// The certificates that the node expects at its own port, and shows there.
#[derive(Clone)]
pub struct SelfCheck {
    tls: TlsConnector,
}

impl SelfCheck {
    /// Made from the DER of the authority of the API's certificate and, where clients need one, a certificate and its PKCS#8 key.
    pub fn new(authority: &[u8], client: Option<(&[u8], &[u8])>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(authority.to_vec()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let mut config = match client {
            Some((certificate, key)) => builder.with_client_auth_cert(
                vec![CertificateDer::from(certificate.to_vec())],
                PrivatePkcs8KeyDer::from(key.to_vec()).into(),
            )?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    /// Calls Version; the error says which step failed.
    pub async fn ask(&self) -> anyhow::Result<()> {
        let stream = TcpStream::connect(("127.0.0.1", instar_api::PORT))
            .await
            .context("connect to the API")?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("127.0.0.1")?;
        let stream = self.tls.connect(name, stream).await.context("TLS")?;
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .context("HTTP/2")?;
        let _connection = AbortOnDropHandle::new(instar_base::task::spawn(connection));
        let uri = format!("https://127.0.0.1:{}{METHOD}", instar_api::PORT);
        let request = Request::post(uri)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(Full::new(EMPTY_MESSAGE))?;
        let response = sender.send_request(request).await.context("the call")?;
        ensure!(response.status().is_success(), "HTTP {}", response.status());
        let (head, body) = response.into_parts();
        let body = body.collect().await.context("the answer")?;
        // A call that failed at once has its status among the headers (gRPC over HTTP/2, "Trailers-Only").
        match body.trailers().and_then(status).or(status(&head.headers)) {
            Some("0") => Ok(()),
            Some(code) => bail!("Version answered with status {code}"),
            None => bail!("Version answered without a status"),
        }
    }
}

fn status(headers: &HeaderMap) -> Option<&str> {
    headers.get("grpc-status")?.to_str().ok()
}
