//! Serves a folder of channels.
//!
//! | GET | answer |
//! | --- | --- |
//! | `/NAME` | 302 to `/NAME/VERSION`, the newest release that is for all machines: what system-upgrade-controller's channels expect |
//! | `/NAME/VERSION` | the release, as JSON |
//! | `/NAME/releases-v1.json`, `.sig`, `/NAME/approvals/….sig` | the files |
//!
//! Files are read at each request, so a promotion is served at once. Whether a list is signed, and by whom, is the machines' business.

mod answer;

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use self::answer::answer;
use crate::command_line::Serve;

/// Limit on connections at once.
const CONNECTIONS: usize = 256;
/// Time for a handshake and for the head of a request, and for a whole connection.
const HEAD: Duration = Duration::from_secs(10);
const CONNECTION: Duration = Duration::from_secs(120);

/// Serves the folder until the program is ended.
pub(crate) fn run(folder: &Path, serve: &Serve) -> anyhow::Result<()> {
    let tls = match (&serve.tls_certificate, &serve.tls_key) {
        (Some(certificate), Some(key)) => Some(acceptor(certificate, key)?),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(accept(folder.to_owned(), serve, tls))
}

fn acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let read = |file: &Path| fs::read(file).with_context(|| format!("read {}", file.display()));
    let certificates = read(certificate)?;
    let certificates = CertificateDer::pem_slice_iter(&certificates).collect::<Result<_, _>>();
    let certificates = certificates.with_context(|| format!("read {}", certificate.display()))?;
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).context("read the key")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(folder: PathBuf, serve: &Serve, tls: Option<TlsAcceptor>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(serve.listen)
        .await
        .with_context(|| format!("listen at {}", serve.listen))?;
    println!("serving {} at {}", folder.display(), listener.local_addr()?);
    let (folder, free) = (Arc::new(folder), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let permit = free.clone().acquire_owned().await?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, for example: connections that end make room.
                eprintln!("instar-channel: accept: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let (folder, tls) = (folder.clone(), tls.clone());
        tokio::spawn(async move {
            let _permit = permit;
            // A client that is too slow is cut off.
            let _ = timeout(CONNECTION, connection(stream, tls, folder)).await;
        });
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, folder: Arc<PathBuf>) {
    match tls {
        None => requests(stream, folder).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await {
                requests(stream, folder).await;
            }
        }
    }
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin>(stream: S, folder: Arc<PathBuf>) {
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let folder = folder.clone();
        async move { Ok::<_, Infallible>(answer(&folder, request.method(), request.uri().path())) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // A client that hangs up is no problem of the server.
    let _ = served.await;
}
