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

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_http_server::{Limits, accept, requests};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use self::answer::answer;
use crate::command_line::Serve;

/// A client that is too slow is cut off.
const LIMITS: Limits = Limits {
    connections: 256,
    life: Duration::from_secs(120),
};
/// Time for a handshake, and for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Serves the folder until the program is ended.
pub(crate) fn run(folder: &Path, serve: &Serve) -> anyhow::Result<()> {
    let tls = match (&serve.tls_certificate, &serve.tls_key) {
        (Some(certificate), Some(key)) => Some(acceptor(certificate, key)?),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, listen(folder, serve, tls))
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

async fn listen(folder: &Path, serve: &Serve, tls: Option<TlsAcceptor>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(serve.listen)
        .await
        .with_context(|| format!("listen at {}", serve.listen))?;
    println!("serving {} at {}", folder.display(), listener.local_addr()?);
    let folder = folder.to_owned();
    accept(listener, LIMITS, async move |stream| {
        connection(stream, tls.as_ref(), &folder).await;
    })
    .await;
    Ok(())
}

async fn connection(stream: TcpStream, tls: Option<&TlsAcceptor>, folder: &Path) {
    match tls {
        None => files(stream, folder).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await {
                files(stream, folder).await;
            }
        }
    }
}

async fn files<S: AsyncRead + AsyncWrite + Unpin>(stream: S, folder: &Path) {
    let served = requests(stream, HEAD, async |request| {
        answer(folder, request.method(), request.uri().path())
    });
    served.await;
}
