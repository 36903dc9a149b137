//! Unfinished calls: their headers are sent, and all of their message but its last byte.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::calls::{Answer, answer, framed, request};

/// Timeout for the answer to a complete call.
const PATIENCE: Duration = Duration::from_secs(60);

type Said = Result<Answer, String>;

/// One connection, and the calls that are parked on it.
#[derive(Debug)]
pub struct Parked {
    sender: SendRequest<BoxBody<Bytes, Infallible>>,
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    method: String,
    last: Bytes,
    rest: oneshot::Sender<Bytes>,
    answer: JoinHandle<Said>,
}

impl Parked {
    /// Begins with a connection of HTTP/2 without calls.
    pub async fn on<Stream>(stream: Stream) -> Result<Self>
    where
        Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .context("HTTP/2")?;
        tokio::spawn(connection);
        Ok(Self {
            sender,
            calls: Vec::new(),
        })
    }

    /// Begins a call.
    pub fn park(&mut self, method: &str, message: &[u8]) -> Result<()> {
        let mut first = framed(message)?;
        let last = first.split_off(first.len() - 1);
        let (rest, more) = oneshot::channel();
        let body = Unfinished {
            first: Some(first),
            more: Some(more),
        };
        self.calls.push(Call {
            method: method.to_owned(),
            last,
            rest,
            answer: tokio::spawn(send(self.sender.clone(), method, body.boxed())?),
        });
        Ok(())
    }

    /// Makes a complete call; returns the answer.
    pub async fn call(&self, method: &str, message: &[u8]) -> Result<Said> {
        let body = Full::new(framed(message)?).boxed();
        let answer = send(self.sender.clone(), method, body)?;
        Ok(tokio::time::timeout(PATIENCE, answer).await?)
    }

    /// Finishes all parked calls; returns each one's answer, or why there is none.
    pub async fn finish(&mut self) -> Result<Vec<(String, Said)>> {
        let mut answers = Vec::new();
        for call in std::mem::take(&mut self.calls) {
            // A call that was answered before takes no more bytes.
            let _ = call.rest.send(call.last);
            let answer = tokio::time::timeout(PATIENCE, call.answer).await;
            let answer = answer.with_context(|| format!("{} is not answered", call.method))?;
            answers.push((call.method, answer?));
        }
        Ok(answers)
    }
}

fn send(
    mut sender: SendRequest<BoxBody<Bytes, Infallible>>,
    method: &str,
    body: BoxBody<Bytes, Infallible>,
) -> Result<impl Future<Output = Said> + Send + 'static> {
    let request = request(method, body)?;
    Ok(async move {
        sender.ready().await.map_err(|error| error.to_string())?;
        match sender.send_request(request).await {
            Ok(response) => Ok(answer(response).await),
            Err(error) => Err(error.to_string()),
        }
    })
}

/// A body whose end comes on order.
struct Unfinished {
    first: Option<Bytes>,
    more: Option<oneshot::Receiver<Bytes>>,
}

impl Body for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(more) = &mut self.more else {
            return Poll::Ready(None);
        };
        let last = ready!(Pin::new(more).poll(context));
        self.more = None;
        Poll::Ready(last.ok().map(|last| Ok(Frame::data(last))))
    }
}
