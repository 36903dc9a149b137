//! One gRPC call over a TLS connection of its own: the node's check of its own API, and its request for a certificate.

use std::net::SocketAddr;

use anyhow::{Context as _, bail, ensure};
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::grpc_framing::{Messages, framed};
use super::grpc_status;

/// Size limit of an answer, in bytes: some certificates.
const LARGEST: usize = 1 << 20;

/// A call with one message.
pub struct OneCall<'a> {
    /// Where the server is.
    pub to: SocketAddr,
    /// The name that its certificate has to be valid for.
    pub name: ServerName<'static>,
    /// The full path of the method.
    pub method: &'a str,
    /// Metadata.
    pub metadata: &'a [(&'static str, &'a str)],
    /// The encoded request.
    pub message: &'a [u8],
}

impl OneCall<'_> {
    /// Makes the call and returns the encoded answer; the error says which step failed. The caller limits the time.
    ///
    /// # Errors
    /// A step failed, or the server refused.
    pub async fn make(&self, tls: &TlsConnector) -> anyhow::Result<Bytes> {
        let stream = TcpStream::connect(self.to).await.context("connect")?;
        stream.set_nodelay(true)?;
        let stream = tls.connect(self.name.clone(), stream);
        let stream = stream.await.context("TLS")?;
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .context("HTTP/2")?;
        let _connection = AbortOnDropHandle::new(instar_base::task::spawn(connection));
        let mut request = Request::post(format!("https://{}{}", self.to, self.method))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers");
        for (key, value) in self.metadata {
            request = request.header(*key, *value);
        }
        let request = request.body(Full::new(framed(self.message)))?;
        let response = sender.send_request(request).await.context("the call")?;
        ensure!(response.status().is_success(), "HTTP {}", response.status());
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LARGEST).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("the answer: {error}"))?;
        // A call that failed at once has its status among the headers (gRPC over HTTP/2, "Trailers-Only").
        let trailers = body.trailers().cloned().unwrap_or_default();
        check(&trailers, &head.headers)?;
        let mut messages = Messages::of(LARGEST);
        messages.push(&body.to_bytes());
        messages.next()?.context("an answer without a message")
    }
}

fn check(trailers: &HeaderMap, headers: &HeaderMap) -> anyhow::Result<()> {
    let text = |key| {
        let value = trailers.get(key).or(headers.get(key))?;
        value.to_str().ok()
    };
    let message = text(grpc_status::MESSAGE).map(grpc_status::words);
    match text(grpc_status::STATUS) {
        Some("0") => Ok(()),
        Some(code) => bail!("status {code}: {}", message.unwrap_or_default()),
        None => bail!("an answer without a status"),
    }
}
