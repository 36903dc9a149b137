//! The server: the page's files, a stream of views, and commands.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use instar_rollout::{Command, MachineName};
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};

use crate::{Key, Rollouts};

/// Connections at once; more have to wait.
const CONNECTIONS: usize = 64;
/// Timeout for the head of a request, and for the body of a command.
const REQUEST: Duration = Duration::from_secs(5);
/// Limit on the body of a command, in bytes.
const LARGEST_COMMAND: usize = 4096;
/// The pause between two looks at the rollouts.
const LOOK: Duration = Duration::from_millis(500);
/// How long a stream is silent at most: an empty line shows that it lives.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a connection lives; the page connects again.
const LIFE: Duration = Duration::from_secs(600);

/// The page's files: path, type and content.
const FILES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/page.css", "text/css", include_str!("page.css")),
    ("/page.js", "text/javascript", include_str!("page.js")),
];
/// Headers of every answer: nothing but the page's own files runs or is loaded, and no other site shows it in a frame.
const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A command as the page sends it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// The rollout's name.
    rollout: String,
    command: Word,
    /// The machine that the command is about.
    #[serde(default)]
    machine: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Pause,
    Resume,
    Abort,
    Rollback,
    Approve,
    Hold,
    Release,
}

impl Order {
    fn command(&self) -> Command {
        let machine = || MachineName::from(&self.machine);
        let why = || "on the page".to_owned();
        match self.command {
            Word::Pause => Command::Pause(why()),
            Word::Resume => Command::Resume,
            Word::Abort => Command::Abort,
            Word::Rollback => Command::Rollback(why()),
            Word::Approve => Command::Approve,
            Word::Hold => Command::Hold(machine(), why()),
            Word::Release => Command::Release(machine()),
        }
    }
}

/// Serves the page until the future is dropped. It has to run in a `LocalSet`.
pub async fn serve(listener: TcpListener, key: Key, rollouts: impl Rollouts) {
    let (rollouts, key) = (Rc::new(rollouts), Rc::new(key));
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(slot) = slots.clone().acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Descriptors are used up, most likely: closed connections give theirs back.
                sleep(LOOK).await;
                continue;
            }
        };
        let (rollouts, key) = (rollouts.clone(), key.clone());
        tokio::task::spawn_local(async move {
            connection(stream, &key, rollouts).await;
            drop(slot);
        });
    }
}

async fn connection(stream: TcpStream, key: &Key, rollouts: Rc<impl Rollouts>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let rollouts = rollouts.clone();
        async move { Ok::<_, Infallible>(with_headers(answer(request, key, rollouts).await)) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST);
    let served = server.serve_connection(TokioIo::new(stream), answer);
    // A visitor who leaves is no matter.
    let _ = timeout(LIFE, served).await;
}

async fn answer(
    request: Request<Incoming>,
    key: &Key,
    rollouts: Rc<impl Rollouts>,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    if request.method() == Method::GET
        && let Some((_, kind, content)) = FILES.iter().find(|(of, ..)| *of == path)
    {
        let mut response = Response::new(full(content));
        let kind = HeaderValue::from_static(kind);
        response.headers_mut().insert("content-type", kind);
        return response;
    }
    let authorization = request.headers().get(AUTHORIZATION);
    if !authorization.is_some_and(|it| key.opens(it.as_bytes())) {
        let text =
            "the key is missing: open the address that the command printed, with all behind the #";
        return say(StatusCode::UNAUTHORIZED, text);
    }
    match (request.method(), path.as_str()) {
        (&Method::GET, "/rollouts") => Response::new(views(rollouts)),
        (&Method::POST, "/commands") => match order(request).await {
            Ok(order) => match rollouts.command(&order.rollout, order.command()).await {
                Ok(()) => say(StatusCode::OK, "done"),
                Err(why) => say(StatusCode::CONFLICT, &why),
            },
            Err(why) => say(StatusCode::BAD_REQUEST, &why),
        },
        _ => say(StatusCode::NOT_FOUND, "there is no such page"),
    }
}

async fn order(request: Request<Incoming>) -> Result<Order, String> {
    let body = Limited::new(request.into_body(), LARGEST_COMMAND);
    let body = timeout(REQUEST, body.collect()).await;
    let body = body.map_err(|_| "the command did not come within 5 s".to_owned())?;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| format!("that is no command: {error}"))
}

/// What a stream of views remembers.
struct Watch<R> {
    rollouts: Rc<R>,
    said: String,
    when: Instant,
}

/// A line at once, one whenever something has changed, and an empty one now and then.
fn views(rollouts: Rc<impl Rollouts>) -> Body {
    let (lines, written) = mpsc::channel(1);
    let mut watch = Watch {
        rollouts,
        said: String::new(),
        when: Instant::now(),
    };
    tokio::task::spawn_local(async move {
        // It fails when the visitor has left.
        while lines.send(watch.next_line().await).await.is_ok() {}
    });
    let frames = stream::unfold(written, async |mut written| {
        let line: String = written.recv().await?;
        let frame: Result<_, Infallible> = Ok(Frame::data(Bytes::from(line)));
        Some((frame, written))
    });
    UnsyncBoxBody::new(StreamBody::new(frames))
}

impl<R: Rollouts> Watch<R> {
    async fn next_line(&mut self) -> String {
        loop {
            let line = match self.rollouts.views().await {
                Ok(views) => serde_json::json!({ "rollouts": views }),
                Err(why) => serde_json::json!({ "error": why }),
            };
            let line = format!("{line}\n");
            let is_new = line != self.said;
            if is_new || self.when.elapsed() >= SILENCE {
                self.when = Instant::now();
                return match is_new {
                    true => {
                        self.said.clone_from(&line);
                        line
                    }
                    false => "\n".to_owned(),
                };
            }
            sleep(LOOK).await;
        }
    }
}

fn say(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert("content-type", kind);
    response
}

fn full(text: &str) -> Body {
    Full::new(Bytes::copy_from_slice(text.as_bytes())).boxed_unsync()
}

fn with_headers(mut response: Response<Body>) -> Response<Body> {
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

#[cfg(test)]
mod tests;
