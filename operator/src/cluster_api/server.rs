//! The server: TLS, limits, a request in and an answer out.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use instar_http_server::{Limits, accept, requests};
use kube::Client;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::hooks;
use super::wire::Hook;
use crate::failure::Error;
use crate::way;

/// A connection has one request, whose handler has 20 s. The core manager has up to 100 Machines at once.
const LIMITS: Limits = Limits {
    connections: 128,
    life: Duration::from_secs(40),
};
/// Timeout for a handshake, for the head of a request, and for its body.
const HEAD: Duration = Duration::from_secs(5);
/// Limit on a request, in bytes: it has six objects at most, and an object of a cluster 1.5 MiB.
const LONGEST: u32 = 10 << 20;
/// Limit on all requests that are being answered, in bytes. One that was read takes some six times its text, and the pod has 128 MiB.
const ALL: usize = LONGEST as usize;

/// How the server runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Where to serve the hooks.
    #[arg(long, env = "INSTAR_LISTEN", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// The folder with tls.crt and tls.key, as a Secret of the type kubernetes.io/tls has them. They are read for each connection, so that renewed
    /// ones count at once.
    #[arg(long, env = "INSTAR_CERTIFICATES")]
    certificates: PathBuf,
    /// The authority of callers, PEM: with it only those with a certificate of this authority are heard.
    #[arg(long, env = "INSTAR_CLIENT_AUTHORITY")]
    client_authority: Option<PathBuf>,
}

/// Serves until the process ends.
///
/// # Errors
/// The management cluster cannot be reached, the certificate cannot be used, or the address is taken.
pub fn serve(options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Other(format!("the runtime cannot begin: {error}")))?;
    // One cryptography library in all of our programs.
    let _ = rustls::crypto::ring::default_provider().install_default();
    LocalSet::new().block_on(&runtime, async {
        let management = way::client(Some(way::CALL)).await?;
        listen(management, options).await
    })
}

async fn listen(management: Client, options: Options) -> Result<(), Error> {
    // A folder without a certificate is told now, and not by the first caller.
    acceptor(&options)?;
    let listener = TcpListener::bind(options.listen).await;
    let failed = |error| Error::Other(format!("cannot listen on {}: {error}", options.listen));
    let listener = listener.map_err(failed)?;
    eprintln!("serves the hooks of Cluster API at {}", options.listen);
    let (options, room) = (Rc::new(options), Rc::new(Semaphore::new(ALL)));
    accept(listener, LIMITS, async move |stream| {
        connection(stream, &options, &management, &room).await;
    })
    .await;
    Err(Error::Other("no connection can be accepted".to_owned()))
}

/// `room`: for the bytes of requests.
async fn connection(stream: TcpStream, options: &Options, management: &Client, room: &Semaphore) {
    let tls = match acceptor(options) {
        Ok(tls) => tls,
        Err(error) => {
            eprintln!("a caller cannot be heard: {error}");
            return;
        }
    };
    if let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await {
        let served = requests(stream, HEAD, async |request| {
            respond(request, management, room).await
        });
        served.await;
    }
}

fn acceptor(options: &Options) -> Result<TlsAcceptor, Error> {
    let chain = certificates(&options.certificates.join("tls.crt"))?;
    let key = options.certificates.join("tls.key");
    let key = PrivateKeyDer::from_pem_slice(&read(&key)?).map_err(unusable(&key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable(&options.certificates))?;
    let builder = match &options.client_authority {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(file)?);
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(unusable(file))?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(unusable(&options.certificates))?;
    // Callers speak HTTP/2 as well, and this server does not.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = read(file)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    certificates.map_err(unusable(file))
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    fs::read(file).map_err(unusable(file))
}

fn unusable<E: std::fmt::Display>(file: &Path) -> impl FnOnce(E) -> Error {
    let file = file.display().to_string();
    move |error| Error::Other(format!("{file} cannot be used: {error}"))
}

async fn respond(
    request: Request<Incoming>,
    management: &Client,
    room: &Semaphore,
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if path == "/healthz" {
        return plain(StatusCode::OK, "ok\n");
    }
    let Some(hook) = Hook::of_path(path) else {
        return plain(StatusCode::NOT_FOUND, "this is no hook of this server\n");
    };
    if request.method() != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "hooks are called by POST\n");
    }
    let Some(bytes) = bytes(request.body()) else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long\n");
    };
    let Ok(Ok(_room)) = timeout(HEAD, room.acquire_many(bytes)).await else {
        return plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "too much is asked at once: call again later\n",
        );
    };
    // Callers send no Content-Type, so none is asked for.
    let body = Limited::new(request.into_body(), bytes as usize).collect();
    let Ok(Ok(body)) = timeout(HEAD, body).await else {
        return plain(
            StatusCode::BAD_REQUEST,
            "the request did not come, or is too long\n",
        );
    };
    let answer = hooks::answer(hook, &body.to_bytes(), management).await;
    let mut response = plain(StatusCode::OK, answer.to_string());
    let json = "application/json".parse();
    response
        .headers_mut()
        .extend(json.ok().map(|json| (CONTENT_TYPE, json)));
    response
}

/// The bytes of a request, at most: what it says itself, or the limit. None if it is too long.
fn bytes(body: &impl Body) -> Option<u32> {
    match body.size_hint().upper() {
        Some(told) => u32::try_from(told).ok().filter(|told| *told <= LONGEST),
        None => Some(LONGEST),
    }
}

/// A response, after which the connection ends: calls are seconds apart, and a connection that waits has a slot.
fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let close = "close".parse();
    response
        .headers_mut()
        .extend(close.ok().map(|close| (CONNECTION, close)));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;

    #[test]
    fn a_request_takes_the_room_that_it_says() {
        let of = |length: u32| bytes(&Full::new(Bytes::from(vec![0; length as usize])));
        assert_eq!(of(7), Some(7));
        assert_eq!(of(LONGEST), Some(LONGEST));
        assert_eq!(of(LONGEST + 1), None);
        assert_eq!(bytes(&Empty::<Bytes>::new()), Some(0));
    }
}
