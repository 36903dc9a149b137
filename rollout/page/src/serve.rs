//! The server: the page's files, a stream of views, and commands.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use instar_http_server::{Limits, accept, requests};
use instar_rollout::{Command, MachineName};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{Denied, Rollouts, Views, Visitor};

/// A connection ends with its life, and the page connects again.
const LIMITS: Limits = Limits {
    connections: 64,
    life: Duration::from_secs(600),
};
/// Timeout for the head of a request, and for the body of a command.
const REQUEST: Duration = Duration::from_secs(5);
/// Limit on the body of a command, in bytes.
const LARGEST_COMMAND: usize = 4096;
/// How long a stream is silent at most: an empty line shows that it lives.
const SILENCE: Duration = Duration::from_secs(10);

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
    /// The wave that is approved, from 1: the page may show what was true before the last press.
    #[serde(default)]
    wave: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Pause,
    Resume,
    Retry,
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
            Word::Retry => Command::Retry,
            Word::Abort => Command::Abort,
            Word::Rollback => Command::Rollback(why()),
            Word::Approve => Command::Approve(self.wave),
            Word::Hold => Command::Hold(machine(), why()),
            Word::Release => Command::Release(machine()),
        }
    }
}

/// Serves the page until the future is dropped. It has to run in a `LocalSet`.
pub async fn serve(listener: TcpListener, rollouts: impl Rollouts) {
    accept(listener, LIMITS, async move |stream| {
        let served = requests(stream, REQUEST, async |request| {
            with_headers(answer(request, &rollouts).await)
        });
        served.await;
    })
    .await;
}

async fn answer(request: Request<Incoming>, rollouts: &impl Rollouts) -> Response<Body> {
    let path = request.uri().path();
    let file = FILES.iter().find(|(of, ..)| *of == path);
    match (request.method(), file) {
        (&Method::GET, Some((_, kind, content))) => {
            let mut response = Response::new(full(content));
            let kind = HeaderValue::from_static(kind);
            response.headers_mut().insert("content-type", kind);
            response
        }
        _ => match answer_a_visitor(request, rollouts).await {
            Ok(response) => response,
            Err(Denied::Unknown(why)) => say(StatusCode::UNAUTHORIZED, &why),
            Err(Denied::Forbidden(why)) => say(StatusCode::FORBIDDEN, &why),
            Err(Denied::Impossible(why)) => say(StatusCode::CONFLICT, &why),
        },
    }
}

async fn answer_a_visitor(
    request: Request<Incoming>,
    rollouts: &impl Rollouts,
) -> Result<Response<Body>, Denied> {
    let Some(token) = token(&request) else {
        let text = "the key is missing: open the address with all behind the #";
        return Err(Denied::Unknown(text.to_owned()));
    };
    let visitor = rollouts.enter(token)?;
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/rollouts") => Ok(Response::new(lines(visitor.watch().await?))),
        (&Method::POST, "/commands") => match order(request).await {
            Ok(order) => {
                visitor.command(&order.rollout, order.command()).await?;
                Ok(say(StatusCode::OK, "done"))
            }
            Err(why) => Ok(say(StatusCode::BAD_REQUEST, &why)),
        },
        _ => Ok(say(StatusCode::NOT_FOUND, "there is no such page")),
    }
}

/// The token that a request brings; none without one.
fn token(request: &Request<Incoming>) -> Option<&str> {
    let authorization = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let token = authorization.strip_prefix("Bearer ")?;
    (!token.is_empty()).then_some(token)
}

async fn order(request: Request<Incoming>) -> Result<Order, String> {
    let body = Limited::new(request.into_body(), LARGEST_COMMAND);
    let body = timeout(REQUEST, body.collect()).await;
    let body = body.map_err(|_| "the command did not come within 5 s".to_owned())?;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| format!("that is no command: {error}"))
}

/// The memory of a stream of views.
struct Watch<V> {
    views: V,
    said: String,
    when: Instant,
}

/// A line at once, one whenever something has changed, and an empty one now and then.
fn lines(views: impl Views) -> Body {
    let (lines, written) = mpsc::channel(1);
    let mut watch = Watch {
        views,
        said: String::new(),
        when: Instant::now(),
    };
    tokio::task::spawn_local(async move {
        loop {
            let line = tokio::select! {
                line = watch.next_line() => line,
                // The visitor has left.
                () = lines.closed() => return,
            };
            if lines.send(line).await.is_err() {
                return;
            }
        }
    });
    let frames = stream::unfold(written, async |mut written| {
        let line: String = written.recv().await?;
        let frame: Result<_, Infallible> = Ok(Frame::data(Bytes::from(line)));
        Some((frame, written))
    });
    UnsyncBoxBody::new(StreamBody::new(frames))
}

impl<V: Views> Watch<V> {
    async fn next_line(&mut self) -> String {
        let until = self.when + SILENCE;
        let line = loop {
            let line = match timeout_at(until, self.views.next()).await {
                Ok(Ok(views)) => serde_json::json!({ "rollouts": views }).to_string() + "\n",
                Ok(Err(why)) => serde_json::json!({ "error": why }).to_string() + "\n",
                Err(_) => break "\n".to_owned(),
            };
            if line != self.said {
                self.said.clone_from(&line);
                break line;
            }
        };
        self.when = Instant::now();
        line
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
