//! The server: HTTP/1.1 with or without TLS, `GET` and `HEAD` of documents and blobs, and nothing else.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::blob::{self, Body};
use super::offer::{Offer, Tagged};
use super::request::{Part, Wanted, registry_of};
use crate::base::blocking_io;
use crate::oci::StoreError;
use crate::values::Digest;

/// Limit on connections: each takes up to 256 KiB. Others wait in the kernel.
const MOST_CONNECTIONS: usize = 16;
/// Time for a handshake of TLS, for a request to be complete, and between two requests of a connection.
const REQUEST: Duration = Duration::from_secs(15);
/// Bytes of a connection's buffer.
const BUFFER: usize = 16 << 10;
/// Pause after a connection could not be accepted for want of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Limit on manifests, as for pulls.
const LARGEST_DOCUMENT: u64 = 1 << 20;

/// The figures of a server.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Requests that were answered.
    pub(super) requests: AtomicU64,
    /// Bytes of blobs that were sent.
    pub(super) bytes: AtomicU64,
}

/// Serves until this time. Connections end with the future.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    offer: Arc<Offer>,
    figures: Arc<Figures>,
    until: Instant,
) {
    let mut connections = JoinSet::new();
    loop {
        let is_full = connections.len() >= MOST_CONNECTIONS;
        tokio::select! {
            () = sleep_until(until) => return,
            _ = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if !is_full => match accepted {
                Ok((connection, from)) => {
                    let (tls, offer, figures) = (tls.clone(), offer.clone(), figures.clone());
                    connections.spawn(async move {
                        let served = match tls {
                            None => one(connection, offer, figures).await,
                            Some(tls) => over_tls(connection, &tls, offer, figures).await,
                        };
                        if let Err(error) = served {
                            tracing::debug!("the connection from {from} broke off: {error:#}");
                        }
                    });
                }
                Err(error) => {
                    tracing::debug!("no connection can be taken: {error}");
                    sleep(ACCEPT_AGAIN).await;
                }
            },
        }
    }
}

async fn over_tls(
    connection: TcpStream,
    tls: &TlsAcceptor,
    offer: Arc<Offer>,
    figures: Arc<Figures>,
) -> anyhow::Result<()> {
    let secured = timeout(REQUEST, tls.accept(connection)).await;
    one(secured.context("no handshake in time")??, offer, figures).await
}

/// Serves one connection.
async fn one(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    offer: Arc<Offer>,
    figures: Arc<Figures>,
) -> anyhow::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let (offer, figures) = (offer.clone(), figures.clone());
        async move {
            figures.requests.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(answer(&request, &offer, &figures).await)
        }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(connection), service)
        .await?;
    Ok(())
}

async fn answer(
    request: &Request<Incoming>,
    offer: &Offer,
    figures: &Arc<Figures>,
) -> Response<Body> {
    let is_head = request.method() == Method::HEAD;
    if !is_head && request.method() != Method::GET {
        let mut refused = error(
            StatusCode::METHOD_NOT_ALLOWED,
            "UNSUPPORTED",
            "it only reads",
        );
        let allowed = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(ALLOW, allowed);
        return refused;
    }
    let found = match Wanted::of(request.uri().path()) {
        Wanted::Base => Ok(Some(whole(b"{}".as_slice().into(), "application/json"))),
        Wanted::Tag { repository, tag } => {
            let registry = registry_of(request.uri().query());
            match offer.tag(repository, tag, registry.as_deref()) {
                Tagged::Document(digest) => manifest(offer, digest).await,
                Tagged::Several(registries) => Ok(Some(of_several(&registries))),
                Tagged::Nothing => Ok(None),
            }
        }
        Wanted::Tags { repository } => Ok(tags(offer, &repository)),
        Wanted::Manifest(digest) if offer.has_manifest(digest) => manifest(offer, digest).await,
        Wanted::Blob(digest) if offer.has_blob(digest) => {
            let range = request.headers().get(RANGE);
            let range = range.and_then(|range| range.to_str().ok());
            blob_of(offer, digest, range, is_head, figures).await
        }
        _ => Ok(None),
    };
    let mut answer = match found {
        Ok(Some(answer)) => answer,
        Ok(None) => error(
            StatusCode::NOT_FOUND,
            "NAME_UNKNOWN",
            "it is not served here",
        ),
        Err(failure) => {
            tracing::error!("the temporary registry: {failure}");
            error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "UNKNOWN",
                "the disk failed",
            )
        }
    };
    let version = HeaderValue::from_static("registry/2.0");
    answer
        .headers_mut()
        .insert("docker-distribution-api-version", version);
    if is_head {
        *answer.body_mut() = empty();
    }
    answer
}

/// The refusal of a tag that images of several registries have: any of them might be the wrong one.
fn of_several(registries: &[String]) -> Response<Body> {
    let message = format!(
        "images of {} have this name: ask with the query ns=REGISTRY, or by a digest",
        registries.join(" and ")
    );
    error(StatusCode::NOT_FOUND, "NAME_UNKNOWN", &message)
}

/// The list of a repository's tags; none if nothing of it is served.
fn tags(offer: &Offer, repository: &str) -> Option<Response<Body>> {
    let tags = offer.tags(repository);
    let list = serde_json::json!({"name": repository, "tags": tags});
    (!tags.is_empty()).then(|| whole(list.to_string().into(), "application/json"))
}

/// A document, compared with its digest.
async fn manifest(offer: &Offer, digest: Digest) -> Result<Option<Response<Body>>, StoreError> {
    let document = match offer.document(digest) {
        Some(document) => document,
        None => {
            let store = offer.store().clone();
            let reading = move || store.document(digest, LARGEST_DOCUMENT);
            let document = blocking_io::within(blocking_io::ANSWER, reading).await;
            let Some(document) = document.unwrap_or(Ok(None))? else {
                return Ok(None);
            };
            document.into()
        }
    };
    let media_type = media_type(&document);
    let mut answer = whole(document, &media_type);
    name_digest(&mut answer, digest);
    Ok(Some(answer))
}

/// The media type that a document says it has.
fn media_type(document: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(document).ok();
    let parsed = parsed.unwrap_or_default();
    let said = parsed["mediaType"].as_str();
    let usual = match parsed["manifests"].is_array() {
        true => "application/vnd.oci.image.index.v1+json",
        false => "application/vnd.oci.image.manifest.v1+json",
    };
    said.unwrap_or(usual).to_owned()
}

async fn blob_of(
    offer: &Offer,
    digest: Digest,
    range: Option<&str>,
    is_head: bool,
    figures: &Arc<Figures>,
) -> Result<Option<Response<Body>>, StoreError> {
    if let Some(document) = offer.document(digest) {
        figures
            .bytes
            .fetch_add(document.len() as u64, Ordering::Relaxed);
        let mut answer = whole(document, "application/octet-stream");
        name_digest(&mut answer, digest);
        return Ok(Some(answer));
    }
    let store = offer.store().clone();
    let opening = move || store.open(digest);
    let opened = blocking_io::within(blocking_io::ANSWER, opening).await;
    let Some(blob) = opened.unwrap_or(Ok(None))? else {
        return Ok(None);
    };
    let size = blob.size();
    let mut answer = Response::new(empty());
    let part = match Part::of(range, size) {
        Part::Whole => 0..size,
        Part::Bytes(part) => {
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
            let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
            set(&mut answer, CONTENT_RANGE, &text);
            part
        }
        Part::Unsatisfiable => {
            let code = StatusCode::RANGE_NOT_SATISFIABLE;
            let mut refused = error(code, "SIZE_INVALID", "there are no such bytes");
            set(&mut refused, CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(Some(refused));
        }
    };
    set(&mut answer, CONTENT_TYPE, "application/octet-stream");
    set(&mut answer, ACCEPT_RANGES, "bytes");
    set(
        &mut answer,
        CONTENT_LENGTH,
        &(part.end - part.start).to_string(),
    );
    name_digest(&mut answer, digest);
    if !is_head {
        let figures = figures.clone();
        let count = move |bytes| {
            figures.bytes.fetch_add(bytes, Ordering::Relaxed);
        };
        *answer.body_mut() = blob::body(blob, part, offer.compared().clone(), count);
    }
    Ok(Some(answer))
}

fn empty() -> Body {
    full(Bytes::new())
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// An answer with a whole small document.
fn whole(document: Bytes, media_type: &str) -> Response<Body> {
    let length = document.len().to_string();
    let mut answer = Response::new(full(document));
    set(&mut answer, CONTENT_TYPE, media_type);
    set(&mut answer, CONTENT_LENGTH, &length);
    answer
}

/// An error, as the distribution specification has it.
fn error(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let text = format!("{{\"errors\":[{{\"code\":\"{code}\",\"message\":\"{message}\"}}]}}");
    let mut answer = whole(text.into(), "application/json");
    *answer.status_mut() = status;
    answer
}

fn name_digest(answer: &mut Response<Body>, digest: Digest) {
    if let Ok(value) = HeaderValue::from_str(&digest.to_string()) {
        answer.headers_mut().insert("docker-content-digest", value);
    }
}

/// Sets a header; a text that is none is left out.
fn set(answer: &mut Response<Body>, name: hyper::header::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        answer.headers_mut().insert(name, value);
    }
}
