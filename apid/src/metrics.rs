//! Serves the node's metrics over HTTP, for programs that speak no gRPC: one page on a port of its own, if the config asks for it.
//!
//! The decision: apid serves it, as its callers are strangers. It asks machined as for any reader, so a defect here gives away what a reader
//! may see and nothing else.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use instar_api::instar::MetricsResponse;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either as Stream;

use super::HANDSHAKE;
use super::caller::{Caller, Mode};
use super::flag::Flag;
use super::grpc_framing::{Messages, framed};
use super::handed_sockets::{self, Listening, next_connection};
use super::identity::Credentials;
use super::permissions;
use super::proxy::Proxy;
use super::revocable::Revocation;
use super::unauthenticated_limit::UnauthenticatedLimit;

/// The method that machined is asked by.
const METHOD: &str = "/instar.MetricsService/Read";
/// The path of the page.
const PATH: &str = "/metrics";
/// The format of the page.
const FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
/// Limit on connections at a time. A further one takes the place of another.
const CONNECTIONS: usize = 16;
/// Timeout for a connection as a whole: it is for one page.
const LONGEST: Duration = Duration::from_secs(30);
/// Size limit of the page, in bytes.
const LARGEST: usize = 4 << 20;

/// The listening socket for metrics, and whether its clients need a certificate.
#[derive(Clone)]
pub(super) struct MetricsListener {
    listener: Arc<TcpListener>,
    with_tls: bool,
}

impl Listening for MetricsListener {
    type Connection = (TcpStream, SocketAddr, bool);

    async fn connection(&self) -> io::Result<Self::Connection> {
        let (stream, peer) = self.listener.accept().await?;
        Ok((stream, peer, self.with_tls))
    }
}

/// Takes a listening socket.
pub(super) fn listener(socket: OwnedFd, with_tls: bool) -> anyhow::Result<MetricsListener> {
    let listener = handed_sockets::tcp(socket).context("take the socket for metrics")?;
    Ok(MetricsListener { listener, with_tls })
}

/// Accepts connections on the newest socket, while there is one.
pub(super) async fn accept(
    mut listeners: watch::Receiver<Option<MetricsListener>>,
    credentials: watch::Receiver<Arc<Credentials>>,
    proxy: Proxy,
) -> Infallible {
    let limit = UnauthenticatedLimit::new(CONNECTIONS);
    loop {
        let arriving = next_connection(&mut listeners, &[], "a connection for metrics");
        let ((stream, peer, with_tls), _) = arriving.await;
        let (credentials, proxy) = (credentials.borrow().clone(), proxy.for_another());
        limit.admit(|place| {
            let connection = async move {
                let served = serve(stream, peer, with_tls, credentials, proxy);
                // The errors of an unknown client's connection are not logged, or anyone could fill the log.
                let _ = tokio::time::timeout(LONGEST, served).await;
                drop(place);
            };
            instar_base::task::spawn(connection).abort_handle()
        });
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    with_tls: bool,
    credentials: Arc<Credentials>,
    proxy: Proxy,
) -> anyhow::Result<()> {
    ensure!(credentials.mode() == Mode::Normal, "there is no config");
    let (caller, stream) = match with_tls {
        false => (Caller::anyone(peer), Stream::Right(stream)),
        true => {
            let acceptor = credentials.acceptor_of_metrics()?;
            let tls = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
            (
                credentials.caller(tls.get_ref().1, peer)?,
                Stream::Left(tls),
            )
        }
    };
    let stream: Stream<TlsStream<TcpStream>, TcpStream> = stream;
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (caller, proxy) = (caller.clone(), proxy.clone());
        async move { Ok::<_, Infallible>(answer(&request, &caller, &proxy).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .keep_alive(false)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

async fn answer(
    request: &Request<Incoming>,
    caller: &Caller,
    proxy: &Proxy,
) -> Response<Full<Bytes>> {
    let refused = |status, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text + "\n")));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != PATH {
        return refused(StatusCode::NOT_FOUND, format!("the metrics are at {PATH}"));
    }
    if request.method() != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "only GET".to_owned());
    }
    if !permissions::may_call(METHOD, &caller.roles, Mode::Normal) {
        return refused(StatusCode::FORBIDDEN, "not authorized".to_owned());
    }
    match read(caller, proxy).await {
        Ok(text) => {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            response.headers_mut().insert(header::CONTENT_TYPE, FORMAT);
            response
        }
        Err(error) => refused(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")),
    }
}

/// Asks machined.
async fn read(caller: &Caller, proxy: &Proxy) -> anyhow::Result<String> {
    let lost = Flag::default();
    let body = Revocation::by(&lost).guard(Full::new(framed(&[])));
    let request = Request::post(METHOD)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(Either::Right(body))?;
    let response = proxy.pass_on(request, caller).await?;
    let body = Limited::new(response.into_body(), LARGEST).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("the answer: {error}"))?;
    let mut messages = Messages::of(LARGEST);
    messages.push(&body.to_bytes());
    let message = messages.next()?.context("machined has no metrics")?;
    Ok(MetricsResponse::decode(message)?.text)
}
