//! A connection and what a release puts around each call.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::wire::{AnyMessage, Fields};
use crate::identity::Identity;
use crate::node::Node;

/// How long a call without an end of its own may take.
const CALL: Duration = Duration::from_secs(120);

/// Which of the recorded clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 1.13.9: names nodes in `nodes`, for most calls.
    V1_13,
    /// 1.14.0-beta.1: names one node in `node`, for every call.
    V1_14,
}

impl Release {
    /// Its own version.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::V1_13 => "v1.13.9",
            Self::V1_14 => "v1.14.0-beta.1",
        }
    }
}

/// What a call says about the node that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// As the release does for this method.
    ByMethod,
    /// In `node`, as both releases do where they follow what becomes of a node.
    One,
    /// Not at all.
    Nobody,
}

/// A connection to a node.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) release: Release,
    channel: Channel,
    /// What `-n` says.
    pub(super) node: String,
    naming: Naming,
    /// What calls say about how long they may take.
    deadline: Option<Duration>,
}

/// The stream of answers to a call.
pub(super) struct Answers {
    stream: Streaming<Fields>,
    named: Named,
}

/// What answers have to say of the node.
#[derive(Debug, Clone)]
enum Named {
    /// Nothing: there was one.
    No,
    /// Which one of `nodes` they are of.
    As(String),
}

impl Session {
    /// By mTLS.
    pub(super) async fn open(node: &Node, identity: &Identity, release: Release) -> Result<Self> {
        Ok(Self {
            release,
            channel: node.channel_as(identity).await?,
            node: "127.0.0.1".to_owned(),
            naming: Naming::ByMethod,
            deadline: None,
        })
    }

    /// With `--insecure`: any certificate is believed, none is shown, and nobody is named.
    pub(super) async fn open_insecure(node: &Node, release: Release) -> Result<Self> {
        let endpoint = node.endpoint()?;
        Ok(Self {
            release,
            channel: super::insecure::connect(&endpoint)
                .await
                .with_context(|| format!("cannot connect to {endpoint}"))?,
            node: endpoint,
            naming: Naming::Nobody,
            deadline: None,
        })
    }

    /// The same connection, for calls that name one node whatever the release.
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

    /// The same connection, for calls that have to be over by then (`grpc-timeout`).
    pub(super) fn within(&self, deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            ..self.clone()
        }
    }

    /// The same connection, for calls that name a node without a name.
    pub(super) fn naming_an_empty_one(&self) -> Self {
        Self {
            naming: Naming::One,
            node: String::new(),
            ..self.clone()
        }
    }

    /// The same connection, for calls that name no node.
    pub(super) fn naming_nobody(&self) -> Self {
        Self {
            naming: Naming::Nobody,
            ..self.clone()
        }
    }

    /// Whether it came by `--insecure`.
    pub(super) fn is_insecure(&self) -> bool {
        self.naming == Naming::Nobody
    }

    /// The key that names the node in a call of this method.
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

    /// What the answers of this method have to say of the node.
    fn named(&self, method: &str) -> Named {
        match self.key(method) {
            Some("nodes") => Named::As(self.node.clone()),
            _ => Named::No,
        }
    }

    /// Calls a method, with as many answers as may come.
    pub(super) async fn stream(
        &self,
        method: &'static str,
        asked: Fields,
    ) -> Result<Answers, Status> {
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
        let mut client = Grpc::new(self.channel.clone())
            .max_decoding_message_size(instar_api::MAX_MESSAGE_BYTES);
        let gone = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        client.ready().await.map_err(gone)?;
        let path = http::uri::PathAndQuery::from_static(method);
        let stream = client.server_streaming(request, path, AnyMessage).await;
        let stream = stream.map_err(link_lost)?;
        Ok(Answers {
            stream: stream.into_inner(),
            named: self.named(method),
        })
    }

    /// Calls a method that answers with a stream of `common.Data`: its bytes.
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
        let late = |_| Status::deadline_exceeded(format!("no answer to {method}"));
        tokio::time::timeout(CALL, async {
            // What the answer says of nodes is in its elements.
            let mut answers = self.stream(method, asked).await?.unnamed();
            let answer = answers.next().await?;
            answer.ok_or_else(|| Status::internal("no answer and no error"))
        })
        .await
        .map_err(late)?
    }

    /// Calls a method of the machine's own services: its answer has one element, which says which node it is of where the call
    /// named any number of them.
    pub(super) async fn element(
        &self,
        method: &'static str,
        asked: Fields,
    ) -> Result<Fields, Status> {
        let answer = self.call(method, asked).await?;
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
    /// The next answer; none at the stream's end.
    pub(super) async fn next(&mut self) -> Result<Option<Fields>, Status> {
        let answer = self.stream.message().await.map_err(link_lost)?;
        if let Some(answer) = &answer {
            self.named.judge(answer)?;
        }
        Ok(answer)
    }

    /// All of them.
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

/// A status that the node did not send is the link's end, which recorded clients call UNAVAILABLE.
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
