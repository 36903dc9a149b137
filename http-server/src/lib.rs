//! A small HTTP/1 server with a limit at every step: on connections at once, on the time for a request's head, and on a connection's life.
//!
//! ```text
//!   listener ── accept ──► one task for each connection, as many as there are slots ── requests ──► the program's answer
//! ```
//!
//! [`accept`] and [`requests`] are two functions, because a program may have to do something with a connection first, such as TLS.
//!
//! # The key decision: tasks of one thread
//!
//! Handlers need not be `Send`, as the programs that serve here have one thread each: they wait for others, and compute next to nothing. A server for
//! many threads was the other choice: all of them would have to guard what they share.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(500);

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; more have to wait.
    pub connections: usize,
    /// How long one connection may live; then it is cut.
    pub life: Duration,
}

/// Accepts connections until the future is dropped, and has each served in a task of its own. It has to run in a `LocalSet`.
pub async fn accept(
    listener: TcpListener,
    limits: Limits,
    serve: impl AsyncFn(TcpStream) + 'static,
) {
    let serve = Rc::new(serve);
    let slots = Arc::new(Semaphore::new(limits.connections));
    while let Ok(slot) = slots.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // Descriptors are used up, most likely: closed connections give theirs back.
            sleep(PAUSE).await;
            continue;
        };
        let serve = serve.clone();
        tokio::task::spawn_local(async move {
            // A client that left, or was too slow, has lost nothing that it cannot ask for again.
            let _ = timeout(limits.life, serve(stream)).await;
            drop(slot);
        });
    }
}

/// Answers the requests of one connection until its end. The head of each has to come within `head`.
pub async fn requests<S, B>(
    stream: S,
    head: Duration,
    answer: impl AsyncFn(Request<Incoming>) -> Response<B>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let answer = &answer;
    let service = service_fn(|request| async move { Ok::<_, Infallible>(answer(request).await) });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(head);
    // A client that hangs up is no problem of the server.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::Full;
    use hyper::body::Bytes;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::LocalSet;

    use super::*;

    const HEAD: Duration = Duration::from_millis(300);
    const REQUEST: &[u8] = b"GET /x HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";

    /// Serves paths back to the visitor, over one connection at a time.
    async fn with_server(visit: impl AsyncFnOnce(std::net::SocketAddr)) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits {
            connections: 1,
            life: Duration::from_secs(1),
        };
        let serving = accept(listener, limits, async |stream| {
            requests(stream, HEAD, async |request| {
                let path = request.uri().path().to_owned();
                Response::new(Full::new(Bytes::from(path)))
            })
            .await;
        });
        let both = async {
            tokio::select! {
                () = serving => {}
                () = visit(address) => {}
            }
        };
        LocalSet::new().run_until(both).await;
    }

    async fn said(mut stream: TcpStream) -> String {
        let mut text = String::new();
        // A connection that is cut may end with an error.
        let _ = stream.read_to_string(&mut text).await;
        text
    }

    #[tokio::test]
    async fn a_request_is_answered() {
        with_server(async |address| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(REQUEST).await.unwrap();
            let text = said(stream).await;
            assert!(
                text.starts_with("HTTP/1.1 200") && text.ends_with("/x"),
                "{text}"
            );
        })
        .await;
    }

    #[tokio::test]
    async fn who_says_nothing_makes_room_for_the_next_one() {
        with_server(async |address| {
            let silent = TcpStream::connect(address).await.unwrap();
            let mut next = TcpStream::connect(address).await.unwrap();
            next.write_all(REQUEST).await.unwrap();
            let text = timeout(Duration::from_secs(10), said(next)).await.unwrap();
            assert!(text.ends_with("/x"), "{text}");
            drop(silent);
        })
        .await;
    }
}
