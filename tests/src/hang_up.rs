//! Calls whose caller hangs up in the middle of them: by ending the call alone (RST_STREAM), or with the whole connection.

use std::time::Duration;

use anyhow::{Context as _, Result};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;
use tonic::Code;

use crate::node::Node;
use crate::tls_client::TlsClient;

/// The way in which a caller hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HangUp {
    /// The call is reset, and its connection goes on.
    Call,
    /// The connection is closed.
    Connection,
}

/// A connection for calls whose answers are not awaited to the end.
#[derive(Debug)]
pub struct ImpatientCaller {
    sender: http2::SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl ImpatientCaller {
    /// Connects as the node's administrator.
    pub async fn connect(node: &Node) -> Result<Self> {
        let stream = TlsClient::of(node.identity())
            .connect(&node.endpoint()?)
            .await?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await?;
        Ok(Self {
            sender,
            connection: tokio::spawn(connection),
        })
    }

    /// Whether the connection can take another call.
    pub fn is_connected(&self) -> bool {
        self.sender.is_ready()
    }

    /// Calls a method with an encoded message, and hangs up after this time; returns the status of an answer that
    /// arrived before.
    pub async fn call(
        &mut self,
        method: &str,
        message: &[u8],
        after: Duration,
        how: HangUp,
    ) -> Result<Option<(Code, String)>> {
        let is_over = async {
            tokio::time::sleep(after).await;
            Ok(())
        };
        self.call_until(method, message, is_over, how).await
    }

    /// As [`Self::call`], for a caller who hangs up at a sign; an error of the sign's is returned.
    pub async fn call_until(
        &mut self,
        method: &str,
        message: &[u8],
        sign: impl Future<Output = Result<()>>,
        how: HangUp,
    ) -> Result<Option<(Code, String)>> {
        self.sender
            .ready()
            .await
            .context("the connection is closed")?;
        let answer = self.sender.send_request(request(method, message)?);
        // Dropping the call resets it. The connection's task goes on and sends the reset.
        let seen = tokio::select! {
            biased;
            status = async { status(answer.await?).await } => return Ok(Some(status?)),
            seen = sign => seen,
        };
        if how == HangUp::Connection {
            self.connection.abort();
        }
        seen.map(|()| None)
    }
}

fn request(method: &str, message: &[u8]) -> Result<Request<Full<Bytes>>> {
    let length = u32::try_from(message.len())?;
    let framed = [&[0][..], &length.to_be_bytes(), message].concat();
    Ok(Request::post(format!("https://node{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(framed))?)
}

/// Returns the status that a call ends with, and its message.
async fn status(response: Response<Incoming>) -> Result<(Code, String)> {
    let (head, body) = response.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let value = |name: &str| {
        let found = |headers: &HeaderMap| headers.get(name).map(|value| value.as_bytes().to_vec());
        found(&head.headers).or_else(|| found(&trailers))
    };
    let code = value("grpc-status").context("an answer without a status")?;
    let says = String::from_utf8_lossy(&value("grpc-message").unwrap_or_default()).into_owned();
    Ok((Code::from_bytes(&code), says))
}
