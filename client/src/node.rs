//! One node: calls to it, and what its refusals mean.

use instar_api::MAX_MESSAGE_BYTES;
use instar_api::common::Data;
use instar_api::machine::ReadRequest;
use instar_api::machine::machine_service_client::MachineServiceClient;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::connection::{
    ConnectError, REFUSED_CERTIFICATE, find_cause, find_tls_cause, is_tls_alert, tls_advice,
};
use crate::endpoint::Endpoint;
use crate::failure::{Exit, Failure};

/// The file that tells one boot, or one generation, from the next.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A node behind a channel.
#[derive(Clone)]
pub(crate) struct Node {
    channel: Channel,
    endpoint: Endpoint,
    /// As given with -n; none for whoever answers at the endpoint.
    name: Option<String>,
}

impl Node {
    pub(crate) fn new(channel: Channel, endpoint: Endpoint, name: Option<String>) -> Self {
        Self {
            channel,
            endpoint,
            name,
        }
    }

    /// What to call it in output.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.endpoint.host())
    }

    /// The machine service, for calls of any size that the interface allows.
    pub(crate) fn machine(&self) -> MachineServiceClient<Channel> {
        MachineServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The channel, for the clients of the smaller services.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A message, addressed to this node.
    pub(crate) fn request<T>(&self, message: T) -> Result<Request<T>, Failure> {
        let mut request = Request::new(message);
        if let Some(name) = &self.name {
            let value = MetadataValue::try_from(name.as_str()).map_err(|error| {
                Failure::new(Exit::Usage, format!("{name:?} is no name of a node")).because(error)
            })?;
            request.metadata_mut().insert(instar_api::NODE_KEY, value);
        }
        Ok(request)
    }

    /// The only element of a reply.
    pub(crate) fn only<T>(&self, mut messages: Vec<T>) -> Result<T, Failure> {
        messages.pop().ok_or_else(|| {
            Failure::new(Exit::Failed, format!("{} sent an empty reply", self.name()))
        })
    }

    /// Its version.
    pub(crate) async fn version(&self) -> Result<instar_api::machine::Version, Failure> {
        let reply = self.machine().version(self.request(())?).await;
        let reply = reply.map_err(|status| self.explain("cannot ask for the version", status))?;
        self.only(reply.into_inner().messages)
    }

    /// Its version's tag.
    pub(crate) async fn tag(&self) -> Result<String, Failure> {
        Ok(self.version().await?.version.unwrap_or_default().tag)
    }

    /// A file as a stream.
    pub(crate) async fn open(&self, path: &str) -> Result<Streaming<Data>, Failure> {
        let request = self.request(ReadRequest {
            path: path.to_owned(),
        })?;
        let reply = self.machine().read(request).await;
        Ok(reply
            .map_err(|status| self.explain(&format!("cannot read {path}"), status))?
            .into_inner())
    }

    /// Its boot id; the server's own status if it cannot be had.
    pub(crate) async fn boot_id(&self) -> Result<String, BootIdError> {
        let request = self
            .request(ReadRequest {
                path: BOOT_ID.to_owned(),
            })
            .map_err(BootIdError::Request)?;
        let mut stream = self.machine().read(request).await?.into_inner();
        let mut text = Vec::new();
        while let Some(data) = stream.message().await? {
            text.extend(data.bytes);
        }
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// What a refused or broken call means to the caller.
    pub(crate) fn explain(&self, doing: &str, status: Status) -> Failure {
        let doing = format!("{}: {doing}", self.name());
        if let Some((exit, advice)) =
            find_cause::<ConnectError>(&status).map(|cause| (cause.exit(), cause.advice()))
        {
            return Failure::new(exit, doing)
                .advise(advice)
                .because(Cause(status));
        }
        // With TLS 1.3 a refused client certificate shows only after the handshake.
        if let Some(advice) = find_tls_cause(&status).map(|error| tls_advice(&self.endpoint, error))
        {
            return Failure::new(Exit::NotAuthorized, doing)
                .advise(advice)
                .because(Cause(status));
        }
        if is_tls_alert(&status) {
            return Failure::new(Exit::NotAuthorized, doing)
                .advise(REFUSED_CERTIFICATE)
                .because(Cause(status));
        }
        let (exit, advice) = match status.code() {
            Code::Unavailable => (
                Exit::Unreachable,
                Some(format!(
                    "the node may be restarting: try again, or check what answers at {}",
                    self.endpoint
                )),
            ),
            Code::PermissionDenied | Code::Unauthenticated => (
                Exit::NotAuthorized,
                Some(
                    "use a client configuration whose certificate has a role that may do this"
                        .to_owned(),
                ),
            ),
            Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::Aborted => (Exit::Refused, None),
            Code::DeadlineExceeded => (Exit::TimedOut, None),
            Code::Unimplemented => (
                Exit::Failed,
                Some("this version of the node does not serve it".to_owned()),
            ),
            _ => (Exit::Failed, None),
        };
        let failure = Failure::new(exit, doing).because(Cause(status));
        match advice {
            Some(advice) => failure.advise(advice),
            None => failure,
        }
    }
}

/// Why there is no boot id.
pub(crate) enum BootIdError {
    Request(Failure),
    Status(Status),
}

impl From<Status> for BootIdError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// A status that shows the server's words instead of its debug form.
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
