//! One call for several nodes: all are asked at the same time, and their answers are merged into one. A node that fails adds an element
//! with its error, and the call as a whole succeeds.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Either, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use instar_api::{MAX_MESSAGE_BYTES, STREAMING_METHODS};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::caller::Caller;
use super::exchange::{Body, RequestBody, refuse};
use super::grpc_framing::{Messages, framed};
use super::grpc_status::{self, Code};
use super::identity::Credentials;
use super::merge_replies::{self, Failure};
use super::metadata::{NODE, NODES};
use super::proxy::Proxy;
use super::revocable::{Revocable, Revocation};
use super::target::{NO_NAME, Node, Place};
use super::uploads::Upload;
use instar_base::error_chain::chain;
use instar_base::quota::Permit;

/// Size limit of a request to several nodes, which is held in memory while they are asked. A machine config has 1 MiB at most.
const LARGEST_QUESTION: usize = (1 << 20) + (64 << 10);
/// Timeout for the whole request to arrive; then the call gives up its place.
const QUESTION: Duration = Duration::from_secs(10);

/// The ways to reach nodes, for one caller.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) here: Proxy,
    pub(super) credentials: Arc<Credentials>,
    pub(super) caller: Caller,
    pub(super) revocation: Revocation,
}

/// The size limit is shared: with N nodes, each may send 1/N of it.
fn share(nodes: usize) -> usize {
    MAX_MESSAGE_BYTES / nodes.max(1)
}

impl Ways {
    async fn ask(
        &self,
        place: &Place,
        question: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        let failed = |code: Code, message: String| Failure {
            code: code as i32,
            message,
        };
        match place {
            Place::Here => {
                let response = self.here.pass_on(question, &self.caller).await;
                response.map_err(|error| failed(Code::Unavailable, format!("{error:#}")))
            }
            Place::Elsewhere(other) => {
                let (caller, credentials) = (&self.caller, &self.credentials);
                let response = self.here.call(other, question, caller, credentials).await;
                response.map_err(|error| failed(error.code(), chain(&error)))
            }
            Place::Nowhere => Err(failed(Code::InvalidArgument, NO_NAME.to_owned())),
        }
    }
}

/// Asks all of these nodes.
pub(super) async fn ask(
    nodes: Vec<Node>,
    request: Request<Revocable<Upload>>,
    ways: Ways,
) -> Response<Body> {
    let method = request.uri().path().to_owned();
    let (mut parts, body) = request.into_parts();
    for key in [NODE, NODES, "grpc-accept-encoding"] {
        parts.headers.remove(key);
    }
    let here = ways.here.clone();
    let is_stream = STREAMING_METHODS.contains(&method.as_str());
    // A stream may last for days: it neither takes the place of calls that wait, nor waits itself.
    let of_stream = is_stream.then(|| here.streams_of_several().try_acquire(ways.caller.rank()));
    if matches!(of_stream, Some(None)) {
        return refuse(
            Code::ResourceExhausted,
            "too many streams from several nodes are under way on this node; ask the nodes one by one, or try again when some have ended",
        );
    }
    let _place = here.several().acquire(ways.caller.rank()).await;
    let question = Limited::new(body, LARGEST_QUESTION).collect();
    let Ok(Ok(body)) = tokio::time::timeout(QUESTION, question).await else {
        return refuse(
            Code::ResourceExhausted,
            "the request for several nodes is broken, slow, or larger than 1 MiB",
        );
    };
    let body = body.to_bytes();
    // A node that is named twice is asked once.
    let mut named = HashSet::new();
    let nodes = nodes
        .into_iter()
        .filter(|node| named.insert(node.name.clone()));
    let questions = nodes.map(|node| {
        let body = ways.revocation.guard(Full::new(body.clone()));
        let question = Request::from_parts(parts.clone(), Either::Right(body));
        (node, question)
    });
    let questions: Vec<_> = questions.collect();
    match of_stream.flatten() {
        Some(place) => streams(questions, ways, place),
        None => replies(questions, ways).await,
    }
}

async fn replies(questions: Vec<(Node, Request<RequestBody>)>, ways: Ways) -> Response<Body> {
    let share = share(questions.len());
    let answers = questions.into_iter().map(async |(node, question)| {
        let answer = async {
            let response = ways.ask(&node.place, question).await?;
            let reply = whole(response, share).await?;
            merge_replies::of_reply(&reply, &node.name).map_err(|error| broken(error.to_string()))
        };
        answer
            .await
            .unwrap_or_else(|failure| vec![merge_replies::failed(&failure, &node.name)])
    });
    let elements: Vec<Vec<u8>> = join_all(answers).await.into_iter().flatten().collect();
    let reply = framed(&merge_replies::reply(elements));
    answer(StreamBody::new(stream::iter([
        Ok(Frame::data(reply)),
        Ok(end()),
    ])))
}

fn streams(
    questions: Vec<(Node, Request<RequestBody>)>,
    ways: Ways,
    place: Permit,
) -> Response<Body> {
    // A caller who reads slowly makes the nodes wait; each connection then holds what it has received.
    let (sender, receiver) = mpsc::channel(1);
    let share = share(questions.len());
    let mut relays = JoinSet::new();
    for (node, question) in questions {
        let (sender, ways) = (sender.clone(), ways.clone());
        relays.spawn(async move {
            if let Err(failure) = relay(&node, question, &ways, share, &sender).await {
                // A caller who has disconnected needs no reason.
                let _ = sender
                    .send(framed(&merge_replies::failed(&failure, &node.name)))
                    .await;
            }
        });
    }
    drop(sender);
    let elements = merged(receiver, (relays, place));
    answer(StreamBody::new(elements.chain(stream::iter([Ok(end())]))))
}

/// The elements of all nodes. `held` ends with the caller's stream: the relays, and the place among streams.
fn merged<Held: Send + 'static>(
    receiver: mpsc::Receiver<Bytes>,
    held: Held,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static {
    stream::unfold((receiver, held), |(mut receiver, held)| async {
        let element = receiver.recv().await?;
        Some((Ok(Frame::data(element)), (receiver, held)))
    })
}

/// Passes the stream of one node on, element by element.
async fn relay(
    node: &Node,
    question: Request<RequestBody>,
    ways: &Ways,
    share: usize,
    listener: &mpsc::Sender<Bytes>,
) -> Result<(), Failure> {
    let response = ways.ask(&node.place, question).await?;
    let mut messages = Messages::of(share);
    let mut body = Answer::new(response)?;
    while let Some(piece) = body.piece().await? {
        messages.push(&piece);
        while let Some(message) = messages.next().map_err(|error| broken(error.to_string()))? {
            let element = framed(&merge_replies::named(&message, &node.name));
            if listener.send(element).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The single message of a reply; empty when there is none.
async fn whole(response: Response<Incoming>, share: usize) -> Result<Bytes, Failure> {
    let mut messages = Messages::of(share);
    let mut body = Answer::new(response)?;
    let mut whole = None;
    while let Some(piece) = body.piece().await? {
        messages.push(&piece);
        if let Some(message) = messages.next().map_err(|error| broken(error.to_string()))? {
            whole = Some(message);
        }
    }
    Ok(whole.unwrap_or_default())
}

/// The body of a node's response, read to the trailers, which say how the call ended.
struct Answer {
    body: Incoming,
    /// The trailers, once the end has come.
    trailers: Option<HeaderMap>,
}

impl Answer {
    /// Takes a response. An error if the call failed at once: its status is then among the headers.
    fn new(response: Response<Incoming>) -> Result<Self, Failure> {
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(broken(format!("HTTP {}", head.status)));
        }
        if head.headers.contains_key(grpc_status::STATUS) {
            failure(&head.headers).map_or(Ok(()), Err)?;
        }
        let trailers = head
            .headers
            .contains_key(grpc_status::STATUS)
            .then_some(head.headers);
        Ok(Self { body, trailers })
    }

    /// The next piece; `None` at the end of a call that succeeded.
    async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Failure {
                code: Code::Unavailable as i32,
                message: format!("the node is gone: {error}"),
            })?;
            match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                Err(frame) => self.trailers = frame.into_trailers().ok(),
            }
        }
        match &self.trailers {
            Some(trailers) => failure(trailers).map_or(Ok(None), Err),
            None => Err(broken("the answer ended without a status".to_owned())),
        }
    }
}

/// For fuzzing: decodes bytes as another node's answer. The first byte sets the size of the pieces in which it comes, and whether it is a
/// stream.
#[cfg(feature = "fuzzing")]
pub(super) fn decode(bytes: &[u8]) {
    const LIMIT: usize = 1 << 20;
    let Some((&how, body)) = bytes.split_first() else {
        return;
    };
    let mut messages = Messages::of(LIMIT);
    for piece in body.chunks(usize::from(how >> 1) + 1) {
        messages.push(piece);
        while let Ok(Some(message)) = messages.next() {
            assert!(message.len() <= LIMIT);
            if how & 1 == 1 {
                assert!(merge_replies::named(&message, "n").starts_with(&message));
            } else if let Ok(named) = merge_replies::of_reply(&message, "n") {
                let count = named.len();
                let again = merge_replies::of_reply(&merge_replies::reply(named), "n");
                assert!(again.is_ok_and(|again| again.len() == count));
            }
        }
    }
}

/// The failure that the trailers report; `None` when the call succeeded.
fn failure(trailers: &HeaderMap) -> Option<Failure> {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let code = trailers.get(grpc_status::STATUS).and_then(text);
    let code = code
        .and_then(|code| code.parse().ok())
        .unwrap_or(Code::Unknown as i32);
    if code == 0 {
        return None;
    }
    let message = trailers.get(grpc_status::MESSAGE).and_then(text);
    Some(Failure {
        code,
        message: grpc_status::words(&message.unwrap_or_default()),
    })
}

fn broken(what: String) -> Failure {
    Failure {
        code: Code::Internal as i32,
        message: format!("the node's answer makes no sense: {what}"),
    }
}

/// The trailers of a call that succeeded.
fn end() -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert(grpc_status::STATUS, HeaderValue::from_static("0"));
    Frame::trailers(trailers)
}

fn answer(
    body: StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static>,
) -> Response<Body> {
    let mut response = Response::new(Either::Right(body.boxed_unsync()));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::target::FOR_SEVERAL;
    use instar_api::UPLOAD_METHODS;
    use instar_base::quota::{Quota, Rank};
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    /// Requests for several nodes have to be single messages, as they are copied to each node; `target` knows the other ones.
    #[test]
    fn streams_are_known_by_the_contract() {
        assert_eq!(UPLOAD_METHODS, ["/machine.MachineService/EtcdRecover"]);
        assert!(STREAMING_METHODS.contains(&"/machine.MachineService/Logs"));
        assert!(!STREAMING_METHODS.contains(&"/machine.MachineService/Version"));
    }

    /// Every other reply has elements in its field 1, and each element has metadata in its own field 1.
    #[test]
    fn replies_have_a_place_for_who_answers() {
        let files = FileDescriptorSet::decode(instar_api::FILE_DESCRIPTOR_SET).unwrap();
        let message = |name: &str| {
            files.file.iter().find_map(|file| {
                let name = name.strip_prefix(&format!(".{}.", file.package()))?;
                file.message_type
                    .iter()
                    .find(|message| message.name() == name)
            })
        };
        let first = |name: &str| {
            let fields = &message(name).unwrap_or_else(|| panic!("{name}")).field;
            let first = fields.iter().find(|field| field.number() == 1).unwrap();
            (first.name().to_owned(), first.type_name().to_owned())
        };
        for file in &files.file {
            for service in &file.service {
                if !FOR_SEVERAL.contains(&format!("{}.{}", file.package(), service.name()).as_str())
                {
                    continue;
                }
                for method in &service.method {
                    // Bootstrap and a few more methods answer with an empty message.
                    if method.output_type() == ".google.protobuf.Empty" {
                        continue;
                    }
                    let mut element = method.output_type().to_owned();
                    if !method.server_streaming() {
                        let (name, inner) = first(&element);
                        assert_eq!(name, "messages", "{}", method.name());
                        element = inner;
                    }
                    let (name, kind) = first(&element);
                    assert_eq!(
                        (name.as_str(), kind.as_str()),
                        ("metadata", ".common.Metadata"),
                        "{}",
                        method.name()
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn a_stream_has_its_place_until_its_end() {
        let quota = Quota::new(2, 1);
        let place = || quota.try_acquire(Rank::Other);
        // The caller leaves, or the nodes end.
        for caller_leaves in [true, false] {
            let (sender, receiver) = mpsc::channel(1);
            let mut elements = Box::pin(merged(receiver, place().unwrap()));
            sender.send(Bytes::from_static(b"line")).await.unwrap();
            assert!(elements.next().await.is_some());
            assert!(place().is_none());
            match caller_leaves {
                true => drop(elements),
                false => {
                    drop(sender);
                    assert!(elements.next().await.is_none());
                }
            }
            assert!(place().is_some());
        }
    }

    #[test]
    fn a_status_is_read_from_trailers() {
        let mut trailers = HeaderMap::new();
        assert_eq!(failure(&trailers).unwrap().code, Code::Unknown as i32);
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        assert_eq!(failure(&trailers), None);
        trailers.insert("grpc-status", HeaderValue::from_static("5"));
        trailers.insert("grpc-message", HeaderValue::from_static("no%20file"));
        let failed = failure(&trailers).unwrap();
        assert_eq!((failed.code, failed.message.as_str()), (5, "no file"));
    }
}
