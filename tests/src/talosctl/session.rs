//! A connection, and the metadata that a release adds to each call.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::wire::{AnyMessage, Fields};
use crate::any_server::connect_to_any_server;
use crate::identity::Identity;
use crate::node::Node;
use crate::tls_client::TlsClient;

/// Timeout for a call without one of its own.
const CALL: Duration = Duration::from_secs(120);
/// Size of the pieces of a file.
const PIECE: usize = 1024;

/// The release of talosctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 1.13.9: names nodes in `nodes`, for most calls.
    V1_13,
    /// 1.14.0-beta.1: names one node in `node`, for every call.
    V1_14,
}

impl Release {
    /// The release's version.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::V1_13 => "v1.13.9",
            Self::V1_14 => "v1.14.0-beta.1",
        }
    }
}

/// The way in which a call names its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// The release's way for this method.
    ByMethod,
    /// In `node`, as both releases do when they follow a node's action.
    One,
    /// Without a name.
    Nobody,
}

/// A connection to a node.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) release: Release,
    channel: Channel,
    /// The value of `-n`.
    pub(super) node: String,
    naming: Naming,
    /// The timeout that calls send.
    deadline: Option<Duration>,
}

/// The stream of answers to a call.
pub(super) struct Answers {
    stream: Streaming<Fields>,
    named: Named,
}

/// The node's name that answers have to give.
#[derive(Debug, Clone)]
enum Named {
    /// None: the call named one node.
    No,
    /// This one of `nodes`.
    As(String),
}

impl Session {
    /// Connects by mTLS.
    pub(super) async fn open(node: &Node, identity: &Identity, release: Release) -> Result<Self> {
        Ok(Self {
            release,
            channel: node.channel_as(identity).await?,
            node: "127.0.0.1".to_owned(),
            naming: Naming::ByMethod,
            deadline: None,
        })
    }

    /// Connects with `--insecure`: accepts any certificate, shows none, and names no node.
    pub(super) async fn open_insecure(node: &Node, release: Release) -> Result<Self> {
        let endpoint = node.endpoint()?;
        let stranger = TlsClient::of(node.identity()).without_certificate();
        Ok(Self {
            release,
            channel: connect_to_any_server(&endpoint, stranger)
                .await
                .with_context(|| format!("cannot connect to {endpoint}"))?,
            node: endpoint,
            naming: Naming::Nobody,
            deadline: None,
        })
    }

    /// Returns the same connection, for calls that name one node in every release.
    pub(super) fn naming_one(&self) -> Self {
        let naming = match self.naming {
            Naming::Nobody => Naming::Nobody,
            _ => Naming::One,
        };
        Self {
            naming,
            ..self.clone()
        }
    }

    /// Returns the same connection, for calls with a deadline (`grpc-timeout`).
    pub(super) fn within(&self, deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            ..self.clone()
        }
    }

    /// Returns the same connection, for calls that name a node with an empty name.
    pub(super) fn naming_an_empty_one(&self) -> Self {
        Self {
            naming: Naming::One,
            node: String::new(),
            ..self.clone()
        }
    }

    /// Returns the same connection, for calls that name no node.
    pub(super) fn naming_nobody(&self) -> Self {
        Self {
            naming: Naming::Nobody,
            ..self.clone()
        }
    }

    /// Whether the connection was opened with `--insecure`.
    pub(super) fn is_insecure(&self) -> bool {
        self.naming == Naming::Nobody
    }

    /// Returns the metadata key that names the node in a call of this method.
    fn key(&self, method: &str) -> Option<&'static str> {
        const ONE_NODE_ONLY: [&str; 3] = [
            "/cosi.resource.State/",
            "/machine.ImageService/",
            "/machine.LifecycleService/",
        ];
        match (self.naming, self.release) {
            (Naming::Nobody, _) => None,
            (Naming::One, _) | (Naming::ByMethod, Release::V1_14) => Some("node"),
            (Naming::ByMethod, Release::V1_13) => {
                let one = ONE_NODE_ONLY.iter().any(|it| method.starts_with(it));
                Some(if one { "node" } else { "nodes" })
            }
        }
    }

    /// Returns the node's name that this method's answers have to give.
    fn named(&self, method: &str) -> Named {
        match self.key(method) {
            Some("nodes") => Named::As(self.node.clone()),
            _ => Named::No,
        }
    }

    /// Adds the metadata that the release sends.
    fn named_request<T>(&self, method: &str, asked: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(asked);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        let metadata = request.metadata_mut();
        metadata.insert("runtime", MetadataValue::from_static("Talos"));
        if let Some(key) = self.key(method) {
            let name: MetadataValue<Ascii> = self
                .node
                .parse()
                .map_err(|_| Status::internal("this name cannot be sent"))?;
            metadata.insert(key, name);
        }
        Ok(request)
    }

    async fn client(&self) -> Result<Grpc<Channel>, Status> {
        let mut client = Grpc::new(self.channel.clone())
            .max_decoding_message_size(instar_api::MAX_MESSAGE_BYTES);
        let gone = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        client.ready().await.map_err(gone)?;
        Ok(client)
    }

    /// Sends a file as a stream of `common.Data`, in small pieces.
    pub(super) async fn send(&self, method: &'static str, file: &[u8]) -> Result<(), Status> {
        let pieces = file.chunks(PIECE);
        let pieces = pieces.map(|piece| Fields::none().bytes(2, piece));
        let pieces: Vec<Fields> = pieces.collect();
        let request = self.named_request(method, tokio_stream::iter(pieces))?;
        let mut client = self.client().await?;
        let path = http::uri::PathAndQuery::from_static(method);
        let sent = client.client_streaming(request, path, AnyMessage).await;
        sent.map(drop)
    }

    /// Calls a method, with any number of answers.
    pub(super) async fn stream(
        &self,
        method: &'static str,
        asked: Fields,
    ) -> Result<Answers, Status> {
        let request = self.named_request(method, asked)?;
        let mut client = self.client().await?;
        let path = http::uri::PathAndQuery::from_static(method);
        let stream = client.server_streaming(request, path, AnyMessage).await;
        let stream = stream.map_err(link_lost)?;
        Ok(Answers {
            stream: stream.into_inner(),
            named: self.named(method),
        })
    }

    /// Calls a method that answers with a stream of `common.Data`; returns the bytes.
    pub(super) async fn bytes(
        &self,
        method: &'static str,
        asked: Fields,
    ) -> Result<Vec<u8>, Status> {
        let parts = self.stream(method, asked).await?.all().await?;
        let bytes = parts.iter().flat_map(|part| part.bytes_of(2));
        Ok(bytes.copied().collect())
    }

    /// Calls a method that answers once.
    pub(super) async fn call(&self, method: &'static str, asked: Fields) -> Result<Fields, Status> {
        self.call_within(CALL, method, asked).await
    }

    async fn call_within(
        &self,
        limit: Duration,
        method: &'static str,
        asked: Fields,
    ) -> Result<Fields, Status> {
        let late = |_| Status::deadline_exceeded(format!("no answer to {method}"));
        tokio::time::timeout(limit, async {
            // The answer names nodes in its elements.
            let mut answers = self.stream(method, asked).await?.unnamed();
            let answer = answers.next().await?;
            answer.ok_or_else(|| Status::internal("no answer and no error"))
        })
        .await
        .map_err(late)?
    }

    /// Calls a method of the machine's own services. Its answer has one element, which names its node if the call named
    /// nodes in `nodes`.
    pub(super) async fn element(
        &self,
        method: &'static str,
        asked: Fields,
    ) -> Result<Fields, Status> {
        self.element_within(CALL, method, asked).await
    }

    /// The same for a call that may take longer than others.
    pub(super) async fn element_within(
        &self,
        limit: Duration,
        method: &'static str,
        asked: Fields,
    ) -> Result<Fields, Status> {
        let answer = self.call_within(limit, method, asked).await?;
        let mut elements = answer.messages_of(1);
        if elements.len() != 1 {
            return Err(Status::internal(format!("not one element: {answer:?}")));
        }
        let element = elements.remove(0);
        self.named(method).judge(&element)?;
        Ok(element)
    }
}

impl Answers {
    /// Returns the next answer; none at the stream's end.
    pub(super) async fn next(&mut self) -> Result<Option<Fields>, Status> {
        let answer = self.stream.message().await.map_err(link_lost)?;
        if let Some(answer) = &answer {
            self.named.judge(answer)?;
        }
        Ok(answer)
    }

    /// Returns all answers.
    pub(super) async fn all(mut self) -> Result<Vec<Fields>, Status> {
        let late = |_| Status::deadline_exceeded("the stream does not end");
        tokio::time::timeout(CALL, async {
            let mut all = Vec::new();
            while let Some(answer) = self.next().await? {
                all.push(answer);
            }
            Ok(all)
        })
        .await
        .map_err(late)?
    }

    fn unnamed(self) -> Self {
        Self {
            named: Named::No,
            ..self
        }
    }
}

/// Turns a status that the node did not send into UNAVAILABLE: the link has ended, and recorded clients say so with
/// that code.
fn link_lost(status: Status) -> Status {
    match std::error::Error::source(&status) {
        Some(source) => Status::unavailable(source.to_string()),
        None => status,
    }
}

impl Named {
    /// Field 1 of an element is `common.Metadata`: host name, error, status.
    fn judge(&self, element: &Fields) -> Result<(), Status> {
        let Self::As(node) = self else {
            return Ok(());
        };
        let metadata = element.message_of(1).unwrap_or_default();
        if metadata.text_of(1) != *node {
            return Err(Status::internal(format!(
                "not said to be of {node}: {element:?}"
            )));
        }
        let status = metadata.message_of(3).unwrap_or_default();
        match (metadata.text_of(2).as_str(), status.number_of(1)) {
            ("", 0) => Ok(()),
            (error, code) => Err(Status::new(
                Code::from(i32::try_from(code).unwrap_or_default()),
                error,
            )),
        }
    }
}
