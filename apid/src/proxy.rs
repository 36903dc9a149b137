//! Passes calls on to machined: each caller's connection has its own HTTP/2 connection over the unix socket. One for all would let each
//! caller block the others: data that a caller does not read fills the shared window.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use instar_api::answers::{NO_MACHINED, UNSERVED};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify, Semaphore};
use tokio::time::{sleep, timeout};

use super::caller::Caller;
use super::exchange::{RequestBody, at};
use super::grpc_status;
use super::identity::Credentials;
use super::lookup::Lookups;
use super::metadata::set_caller;
use super::node_ref::Other;
use super::peers::{CallError, Calls};
use super::permissions;
use super::uploads::Uploads;
use instar_base::quota::{Quota, Rank};

/// The way to machined for one caller's connection; clones share it.
#[derive(Clone)]
pub(super) struct Proxy {
    own: Arc<Own>,
    pub(super) shared: Arc<Shared>,
}

/// The state of one caller's connection.
#[derive(Default)]
struct Own {
    connection: Mutex<Option<SendRequest<RequestBody>>>,
    /// Notified of every call that is passed on.
    used: Notify,
}

/// The state that all connections share.
pub(super) struct Shared {
    socket: &'static str,
    /// Calls that are in flight.
    pub(super) under_way: Quota,
    /// Calls that are passed on to other nodes.
    calls: Calls,
    /// Lookups of other nodes' addresses.
    lookups: Lookups,
    /// Calls for several nodes.
    several: Quota,
    /// Streams from several nodes.
    streams_of_several: Quota,
    pub(super) uploads: Uploads,
}

/// Idle timeout of a connection to machined (it takes up to twice this long): long enough for the next of a row of calls, short enough that
/// a crowd of callers with one call each never holds many connections.
const IDLE: Duration = Duration::from_millis(100);
/// Limit on calls for several nodes at a time, of all callers: request and answers are held in memory. All but two may be of callers who
/// are no administrators.
const SEVERAL: usize = 8;
/// Limit on streams from several nodes at a time, of all callers, a quarter of them for administrators: each stream holds pieces of messages.
const STREAMS_OF_SEVERAL: usize = 64;
/// Limit on calls at a time of all callers who are no administrators: each may have an answer that is not read.
const OTHERS_CALLS: usize = 512;
/// HTTP/2 windows for answers to a caller who is no administrator, in bytes: per call and for the connection. The data comes over a socket
/// of this machine, so larger ones would make nothing faster.
const OTHERS_WINDOWS: (u32, u32) = (64 << 10, 128 << 10);

impl Proxy {
    /// Connects when the first call comes.
    pub(super) fn new(socket: &'static str, lookups: Lookups) -> Self {
        Proxy {
            own: Arc::default(),
            shared: Arc::new(Shared {
                socket,
                under_way: Quota::new(Semaphore::MAX_PERMITS, OTHERS_CALLS),
                calls: Calls::default(),
                lookups,
                several: Quota::new(SEVERAL, SEVERAL - 2),
                streams_of_several: Quota::new(
                    STREAMS_OF_SEVERAL,
                    STREAMS_OF_SEVERAL - STREAMS_OF_SEVERAL / 4,
                ),
                uploads: Uploads::new(),
            }),
        }
    }

    /// The way for another caller, with a connection of its own.
    pub(super) fn for_another(&self) -> Self {
        Proxy {
            own: Arc::default(),
            shared: self.shared.clone(),
        }
    }

    /// Closes the connection whenever no call was passed on for a while: idle callers then cost little. Calls in flight go on to their end.
    pub(super) async fn rest_when_idle(&self) -> Infallible {
        loop {
            self.own.used.notified().await;
            // Polls: a timer for each call would cost more.
            loop {
                sleep(IDLE).await;
                let used_since = timeout(Duration::ZERO, self.own.used.notified()).await;
                if used_since.is_err() {
                    break;
                }
            }
            *self.own.connection.lock().await = None;
        }
    }

    /// The places for calls for several nodes.
    pub(super) fn several(&self) -> &Quota {
        &self.shared.several
    }

    /// The places for streams from several nodes, each until its end.
    pub(super) fn streams_of_several(&self) -> &Quota {
        &self.shared.streams_of_several
    }

    /// Has another node answer a call, or this one if the name leads here.
    pub(super) async fn call(
        &self,
        other: &Other,
        request: Request<RequestBody>,
        caller: &Caller,
        credentials: &Credentials,
    ) -> Result<Response<Incoming>, CallError> {
        let peers = credentials.peers().ok_or(CallError::MayNot)?;
        let addresses = match other {
            Other::Address(address) => vec![*address],
            Other::Name(name) => self.shared.lookups.addresses(name, caller.rank()).await?,
        };
        let is_own = |address: &IpAddr| credentials.is_own_address(*address);
        if !addresses.iter().any(is_own) {
            let (roles, calls) = (&caller.roles, &self.shared.calls);
            return peers.call(other, &addresses, request, roles, calls).await;
        }
        // DNS must not choose which node is reset: this node's certificate has to be valid for the name, as another node's would have to
        // be.
        if !credentials.is_certified_for(other) {
            return Err(CallError::NotThisNode(other.clone()));
        }
        Ok(self.pass_on(request, caller).await?)
    }

    /// Has machined answer. An error means that it was not reached.
    pub(super) async fn pass_on(
        &self,
        request: Request<RequestBody>,
        caller: &Caller,
    ) -> anyhow::Result<Response<Incoming>> {
        let method = request.uri().path().to_owned();
        let passed_on = self.try_to_pass_on(request, caller).await;
        let mut response = passed_on.context(NO_MACHINED)?;
        explain_unimplemented(response.headers_mut(), &method);
        Ok(response)
    }

    async fn try_to_pass_on(
        &self,
        request: Request<RequestBody>,
        caller: &Caller,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut sender = self.connection(caller.rank()).await?;
        let (mut parts, body) = request.into_parts();
        parts.uri = at(&parts.uri, "http", "machined")?;
        let is_judged_again = permissions::is_judged_again(parts.uri.path());
        set_caller(&mut parts.headers, caller, is_judged_again)?;
        Ok(sender
            .send_request(Request::from_parts(parts, body))
            .await?)
    }

    /// The connection, made anew when there is none or it has ended (machined was restarted).
    async fn connection(&self, rank: Rank) -> anyhow::Result<SendRequest<RequestBody>> {
        self.own.used.notify_one();
        let mut current = self.own.connection.lock().await;
        if let Some(sender) = current.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = UnixStream::connect(self.shared.socket)
            .await
            .context("connect to machined")?;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        if rank == Rank::Other {
            let (of_a_call, of_all) = OTHERS_WINDOWS;
            builder
                .initial_stream_window_size(of_a_call)
                .initial_connection_window_size(of_all);
        }
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        instar_base::task::spawn(connection);
        *current = Some(sender.clone());
        Ok(sender)
    }
}

/// The answer of machined, as a header, to a method that the interface has and it leaves out.
const STUB: &str = "Not%20yet%20implemented";

/// Explains an unimplemented method: machined answers without a message, or with one that names nothing, so the caller is told which method
/// it was.
fn explain_unimplemented(headers: &mut HeaderMap, method: &str) {
    let unimplemented = headers.get("grpc-status").is_some_and(|code| code == "12");
    let silent = headers
        .get("grpc-message")
        .is_none_or(|said| said.is_empty() || said == STUB);
    if unimplemented
        && silent
        && let Some(message) = grpc_status::message(&format!("{UNSERVED}{method}"))
    {
        headers.insert("grpc-message", message);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_silence_is_explained() {
        let explained = |code: &'static str, message: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", HeaderValue::from_static(code));
            if let Some(message) = message {
                headers.insert("grpc-message", HeaderValue::from_static(message));
            }
            explain_unimplemented(&mut headers, "/machine.MachineService/EtcdLater");
            let message = headers.get("grpc-message");
            message.map(|message| message.to_str().unwrap_or_default().to_owned())
        };
        let unserved = "this version does not serve /machine.MachineService/EtcdLater";
        assert!(unserved.starts_with(UNSERVED));
        assert_eq!(explained("12", None).as_deref(), Some(unserved));
        assert_eq!(explained("12", Some("")).as_deref(), Some(unserved));
        assert_eq!(explained("12", Some(STUB)).as_deref(), Some(unserved));
        assert_eq!(explained("12", Some("etcd")).as_deref(), Some("etcd"));
        assert_eq!(explained("5", None), None);
    }
}
