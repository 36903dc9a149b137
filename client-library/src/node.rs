//! One node: calls to it, and explanations of its errors.

use std::error::Error as _;

use instar_api::MAX_MESSAGE_BYTES;
use instar_api::answers::{self, NO_FORWARDING, UNSERVED};
use instar_api::common::Data;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{ReadRequest, Version};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::connection::{
    ConnectError, Innermost, REFUSED_CERTIFICATE, find_cause, find_tls_cause, is_tls_alert,
    tls_advice,
};
use crate::endpoint::Endpoint;
use crate::failure::{Failure, FailureKind};

/// The file with an id that changes with each boot, or generation.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A node behind a channel: calls to it, and explanations of its errors.
#[derive(Clone, Debug)]
pub struct Node {
    channel: Channel,
    name: String,
    /// The endpoint of the channel; `None` for a connection that the program made itself.
    endpoint: Option<Endpoint>,
    /// The name by which the node at the other end of the channel routes calls to this one; `None` if it is that node itself.
    routed_to: Option<MetadataValue<Ascii>>,
}

impl Node {
    /// The node that answers at the endpoint.
    pub fn behind(channel: Channel, endpoint: Endpoint) -> Self {
        Self {
            channel,
            name: endpoint.host().to_owned(),
            endpoint: Some(endpoint),
            routed_to: None,
        }
    }

    /// The node that answers on a connection that the program has made itself; `name` is for people.
    pub fn connected(channel: Channel, name: impl Into<String>) -> Self {
        Self {
            channel,
            name: name.into(),
            endpoint: None,
            routed_to: None,
        }
    }

    /// Another node, to which the node at the end of the same channel passes calls on.
    ///
    /// # Errors
    /// The name contains characters that cannot be sent.
    pub fn routed_to(&self, name: &str) -> Result<Self, Failure> {
        let value = MetadataValue::try_from(name).map_err(|error| {
            Failure::new(FailureKind::Usage, format!("{name:?} is no name of a node"))
                .because(error)
        })?;
        Ok(Self {
            name: name.to_owned(),
            routed_to: Some(value),
            ..self.clone()
        })
    }

    /// The same node under another name for people, such as that of its object in a cluster.
    #[must_use]
    pub fn called(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// The name of the node in output.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client of the machine service, with the message limit of the interface.
    pub fn machine(&self) -> MachineServiceClient<Channel> {
        MachineServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The channel, for the clients of the smaller services.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A request with this message, addressed to this node.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(name) = &self.routed_to {
            request
                .metadata_mut()
                .insert(instar_api::NODE_KEY, name.clone());
        }
        request
    }

    /// The single element of a reply.
    ///
    /// # Errors
    /// The reply has no element.
    pub fn only<T>(&self, mut messages: Vec<T>) -> Result<T, Failure> {
        messages.pop().ok_or_else(|| {
            Failure::new(
                FailureKind::Failed,
                format!("{} sent an empty reply", self.name()),
            )
        })
    }

    /// The node's version, platform and features.
    ///
    /// # Errors
    /// The call failed.
    pub async fn version(&self) -> Result<Version, Failure> {
        let reply = self.machine().version(self.request(())).await;
        let reply = reply.map_err(|status| self.explain("cannot ask for the version", status))?;
        self.only(reply.into_inner().messages)
    }

    /// The tag of the node's version, for example `v0.1.0`.
    ///
    /// # Errors
    /// The call failed.
    pub async fn tag(&self) -> Result<String, Failure> {
        Ok(self.version().await?.version.unwrap_or_default().tag)
    }

    /// Opens a file as a stream.
    ///
    /// # Errors
    /// The call failed.
    pub async fn open(&self, path: &str) -> Result<Streaming<Data>, Failure> {
        let request = self.request(ReadRequest {
            path: path.to_owned(),
        });
        let reply = self.machine().read(request).await;
        Ok(reply
            .map_err(|status| self.explain(&format!("cannot read {path}"), status))?
            .into_inner())
    }

    /// Reads a small file as text. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// The node's own status.
    pub async fn read_text(&self, path: &str) -> Result<String, Status> {
        let request = self.request(ReadRequest {
            path: path.to_owned(),
        });
        let mut stream = self.machine().read(request).await?.into_inner();
        let mut text = Vec::new();
        while let Some(data) = stream.message().await? {
            text.extend(data.bytes);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The id of this boot, or of this generation since an upgrade without a reboot.
    ///
    /// # Errors
    /// The node's own status.
    pub async fn boot_id(&self) -> Result<String, Status> {
        Ok(self.read_text(BOOT_ID).await?.trim().to_owned())
    }

    /// Explains the error of a call; `doing` names the caller's action.
    pub fn explain(&self, doing: &str, status: Status) -> Failure {
        let doing = format!("{}: {doing}", self.name());
        if let Some((kind, advice)) =
            find_cause::<ConnectError>(&status).map(|cause| (cause.kind(), cause.advice()))
        {
            return Failure::new(kind, doing)
                .advise(advice)
                .because(Innermost(status));
        }
        // In TLS 1.3 a refused client certificate shows only after the handshake.
        let tls_cause = find_tls_cause(&status).zip(self.endpoint.as_ref());
        if let Some(advice) = tls_cause.map(|(error, endpoint)| tls_advice(endpoint, error)) {
            return Failure::new(FailureKind::NotAuthorized, doing)
                .advise(advice)
                .because(Cause(status));
        }
        if is_tls_alert(&status) {
            return Failure::new(FailureKind::NotAuthorized, doing)
                .advise(REFUSED_CERTIFICATE)
                .because(Cause(status));
        }
        let (kind, advice) = match status.code() {
            // The node answers: another party that it asked is away.
            Code::Unavailable if !is_away(&status) => (FailureKind::Failed, None),
            Code::Unavailable => (
                FailureKind::Unreachable,
                Some(format!(
                    "the node may be restarting: try again, or check what answers at {}",
                    self.address()
                )),
            ),
            Code::PermissionDenied | Code::Unauthenticated => (
                FailureKind::NotAuthorized,
                self.advice_for_the_refused(status.message()),
            ),
            Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::Aborted => (FailureKind::Refused, None),
            Code::DeadlineExceeded => (FailureKind::TimedOut, None),
            Code::Unimplemented => (FailureKind::Failed, advice_for_the_unserved(&status)),
            _ => (FailureKind::Failed, None),
        };
        let failure = Failure::new(kind, doing).because(Cause(status));
        match advice {
            Some(advice) => failure.advise(advice),
            None => failure,
        }
    }

    /// Advice for a caller who may not do something. A node that says why in other words than these needs none: it would be wrong.
    fn advice_for_the_refused(&self, said: &str) -> Option<String> {
        if said.starts_with(NO_FORWARDING) {
            let other = match &self.routed_to {
                Some(_) => self.name(),
                None => "NODE",
            };
            return Some(format!(
                "the node at {} passes no calls on: ask the other one itself, with -e {other} instead of -n",
                self.address()
            ));
        }
        let names_a_role = said.contains(" role ");
        (names_a_role || said.is_empty() || said == "not authorized").then(|| {
            "use a client configuration whose certificate has a role that may do this".to_owned()
        })
    }

    /// The address of the channel, for people.
    fn address(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.to_string(),
            None => self.name.clone(),
        }
    }
}

/// Whether a status of UNAVAILABLE means that the node is away, and not another party that the node has asked, such as a time server, a
/// registry or etcd. A broken connection does, and so do the words of apid, which answers for a node that it does not reach.
fn is_away(status: &Status) -> bool {
    // Only errors of the transport have a source: a status that a node sent has none.
    let said = status.message();
    status.source().is_some() || said.is_empty() || answers::is_away(said)
}

/// Advice for a call that the node does not serve, unless it says why.
fn advice_for_the_unserved(status: &Status) -> Option<String> {
    let said = status.message();
    let is_unknown = ["", "Not yet implemented"].contains(&said) || said.starts_with(UNSERVED);
    is_unknown.then(|| "this version of the node does not serve it".to_owned())
}

/// A status that displays the server's message instead of its debug form.
#[derive(Debug)]
struct Cause(Status);

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.message().is_empty() {
            write!(f, "{}", self.0.code())
        } else {
            f.write_str(self.0.message())
        }
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;

    fn node() -> Node {
        let endpoint = "10.0.0.7".parse().unwrap();
        let channel = Channel::from_static("http://10.0.0.7:50000").connect_lazy();
        Node::behind(channel, endpoint)
    }

    fn advice(node: &Node, code: Code, said: &str) -> Option<String> {
        let failure = node.explain("cannot do it", Status::new(code, said));
        failure.advice().map(str::to_owned)
    }

    #[tokio::test]
    async fn only_who_lacks_a_role_is_told_to_take_another_one() {
        let node = node();
        for (code, said, is_advised) in [
            (Code::PermissionDenied, "not authorized", true),
            (Code::PermissionDenied, "", true),
            (
                Code::PermissionDenied,
                "force needs the role os:admin",
                true,
            ),
            (
                Code::PermissionDenied,
                "not authorized: this machine may hold data; boot it with instar.maintenance=open",
                false,
            ),
            (
                Code::PermissionDenied,
                "there are no resources of type \"x\" here",
                false,
            ),
            (
                Code::Unauthenticated,
                "the certificate is no longer accepted",
                false,
            ),
        ] {
            let given = advice(&node, code, said).is_some_and(|advice| advice.contains("role"));
            assert_eq!(given, is_advised, "{said}");
        }
    }

    #[tokio::test]
    async fn another_version_is_the_advice_only_for_what_a_version_lacks() {
        let node = node();
        for (said, is_advised) in [
            ("", true),
            ("this version does not serve /a.B/C", true),
            ("Not yet implemented", true),
            ("etcd: this node runs no Kubernetes", false),
        ] {
            let given = advice(&node, Code::Unimplemented, said).is_some();
            assert_eq!(given, is_advised, "{said}");
        }
    }

    #[tokio::test]
    async fn a_node_is_away_only_if_it_does_not_answer_itself() {
        let mut broken = Status::unavailable("keep-alive timed out");
        broken.set_source(Arc::new(std::io::Error::from(
            std::io::ErrorKind::ConnectionReset,
        )));
        let said = |text: &str| Status::unavailable(text);
        for (status, is_away) in [
            (broken, true),
            (said(""), true),
            (said(instar_api::CHANGES_VERSION), true),
            (
                said("cannot connect to the node 10.0.0.8: TCP: 10.0.0.8: no answer"),
                true,
            ),
            (said("the node lamp-2 does not answer: reset"), true),
            (
                said(
                    "no address for the node lamp-2: no answer; do this node's resolvers, or its StaticHostConfig, know the name?",
                ),
                true,
            ),
            (
                said("machined does not answer: connect to machined: refused"),
                true,
            ),
            (
                said("no answer from the time server 10.0.0.9 within 5 s"),
                false,
            ),
            (said("etcd: connection refused"), false),
            (said("the node lamp-2 has not joined its cluster"), false),
            (
                said("cannot look r.example/i:v1 up: no answer from the registry"),
                false,
            ),
        ] {
            let text = format!("{status:?}");
            let failure = node().explain("cannot do it", status);
            let expected = match is_away {
                true => FailureKind::Unreachable,
                false => FailureKind::Failed,
            };
            assert_eq!(failure.kind(), expected, "{text}");
            assert_eq!(failure.advice().is_some(), is_away, "{text}");
        }
    }

    #[tokio::test]
    async fn a_node_behind_one_that_passes_nothing_on_is_asked_itself() {
        let said = "no request forwarding: this node was asked for another one";
        let other = node().routed_to("lamp-2").unwrap();
        let advice = advice(&other, Code::PermissionDenied, said).unwrap();
        assert!(advice.contains("-e lamp-2 "), "{advice}");
    }
}
