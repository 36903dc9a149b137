//! Calls of gRPC methods by name, all at once on one connection, with a count of the bytes that came back.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use instar_base::lock::Lock as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;
use tonic::Code;

use crate::tls_client::End;

/// Timeout for all answers, or for the end of the connection.
const PATIENCE: Duration = Duration::from_secs(60);

/// The answer to a call whose response headers have come.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The status; none where the connection ended before it.
    pub status: Option<Code>,
    /// The status's message, percent-encoded as in gRPC's header.
    pub says: String,
    /// The messages, still in their frames.
    pub body: Bytes,
}

/// The results of calls.
#[derive(Debug)]
pub struct Calls {
    /// The answer to each method, or why there is none.
    pub answers: Vec<Result<Answer, String>>,
    /// Number of bytes that the other side sent, of any kind.
    pub heard: usize,
    /// How the connection ended; none if all was answered before that.
    pub end: Option<End>,
}

impl Calls {
    /// Calls each of the methods with the same bytes for a message, all before the first answer, and waits for the
    /// answers. If some are missing the other side has to end the connection.
    pub async fn of<Stream>(stream: Stream, methods: &[String], message: &[u8]) -> Result<Self>
    where
        Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let hearing = Arc::new(Mutex::default());
        let overheard = Overheard {
            stream,
            hearing: hearing.clone(),
        };
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            // The limit before the other side has sent its own: a node takes 64 calls at a time of a caller that is no
            // administrator.
            .initial_max_send_streams(methods.len().min(64))
            .handshake(TokioIo::new(overheard))
            .await?;
        let connection = tokio::spawn(connection);
        let mut answers = vec![Err(NOT_ENDED.to_owned()); methods.len()];
        let answered = answer_all(&sender, methods, message, &mut answers);
        if let Ok(answered) = tokio::time::timeout(PATIENCE, answered).await {
            answered?;
        } else {
            let missing: Vec<_> = (methods.iter().zip(&answers))
                .filter(|(_, answer)| answer.as_ref().is_err_and(|why| why == NOT_ENDED))
                .map(|(method, _)| method)
                .collect();
            let hearing = hearing.locked().clone();
            bail!(
                "neither answered nor ended of {}: {missing:?}; {hearing:?}",
                methods.len()
            );
        }
        if answers.iter().any(Result::is_err) {
            // The client is still alive: the connection does not end for lack of callers.
            let ended = tokio::time::timeout(PATIENCE, connection).await;
            // The connection may end with or without an error, but it has to end.
            let _ = ended.context("the connection is not ended")?;
        } else {
            connection.abort();
        }
        drop(sender);
        let hearing = hearing.locked().clone();
        Ok(Self {
            answers,
            heard: hearing.bytes,
            end: hearing.end,
        })
    }
}

type Sender = http2::SendRequest<Full<Bytes>>;

/// The message for a call that has not ended.
const NOT_ENDED: &str = "neither answered nor ended";

async fn answer_all(
    sender: &Sender,
    methods: &[String],
    message: &[u8],
    answers: &mut [Result<Answer, String>],
) -> Result<()> {
    let mut calls = JoinSet::new();
    for (number, method) in methods.iter().enumerate() {
        let body = Full::new(framed(message)?);
        let (mut sender, request) = (sender.clone(), request(method, body)?);
        calls.spawn(async move { (number, sender.send_request(request).await) });
    }
    while let Some(ended) = calls.join_next().await {
        let (number, response) = ended?;
        answers[number] = match response {
            Ok(response) => Ok(answer(response).await),
            Err(error) => Err(error.to_string()),
        };
    }
    Ok(())
}

/// Returns a message in its frame.
pub(crate) fn framed(message: &[u8]) -> Result<Bytes> {
    let length = u32::try_from(message.len())?;
    Ok([&[0][..], &length.to_be_bytes(), message].concat().into())
}

pub(crate) fn request<B>(method: &str, body: B) -> Result<Request<B>> {
    Ok(Request::post(format!("https://node{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)?)
}

pub(crate) async fn answer(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return Answer::default();
    };
    let after = body.trailers().cloned().unwrap_or_default();
    let value = |name: &str| {
        let found = |headers: &HeaderMap| headers.get(name).map(|value| value.as_bytes().to_vec());
        found(&head.headers).or_else(|| found(&after))
    };
    Answer {
        status: value("grpc-status").map(|code| Code::from_bytes(&code)),
        says: String::from_utf8_lossy(&value("grpc-message").unwrap_or_default()).into_owned(),
        body: body.to_bytes(),
    }
}

/// The bytes that have come over a connection, and its end.
#[derive(Debug, Default, Clone)]
struct Hearing {
    bytes: usize,
    end: Option<End>,
}

/// A stream that notes its bytes and errors, as an HTTP library keeps the errors to itself.
struct Overheard<Stream> {
    stream: Stream,
    hearing: Arc<Mutex<Hearing>>,
}

impl<Stream: AsyncRead + Unpin> AsyncRead for Overheard<Stream> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let mut hearing = self.hearing.locked();
        match &read {
            Poll::Pending => {}
            Poll::Ready(Err(error)) => hearing.end = End::of(error),
            Poll::Ready(Ok(())) => match buffer.filled().len() - before {
                0 => hearing.end = Some(End::Leave),
                bytes => hearing.bytes += bytes,
            },
        }
        drop(hearing);
        read
    }
}

/// Failed writes are dropped without an error: the other side's last bytes may still wait to be read.
impl<Stream: AsyncWrite + Unpin> AsyncWrite for Overheard<Stream> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        written.map(|written| Ok(written.unwrap_or(bytes.len())))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        flushed.map(|_| Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
