//! Passing calls on to machined: an HTTP/2 connection over the unix socket for each of the callers' connections. One for all would be
//! in the hands of each: what somebody does not read takes of a window that the others need.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify, Semaphore};
use tokio::time::{sleep, timeout};

use super::grpc_status::{self, Code};
use super::identity::{Caller, Credentials, Mode};
use super::lookup::Lookups;
use super::other::Other;
use super::peers::{CallError, Calls};
use super::several::{self, Ways};
use super::target::{self, Target};
use super::uploads::{Room, Upload, Uploads};
use super::{impersonation, permissions};

/// Roles of the caller; only apid may set it.
const ROLES: HeaderName = HeaderName::from_static("instar-roles");
/// Address of the caller; only apid may set it.
const PEER: HeaderName = HeaderName::from_static("instar-peer");

/// What goes to machined and to other nodes: a caller's own body, or one that is sent to several nodes.
pub(super) type RequestBody = Either<Upload, Full<Bytes>>;
/// What goes back: as it came, or made here.
pub(super) type Body = Either<Incoming, UnsyncBoxBody<Bytes, Infallible>>;

/// The way to machined of one caller's connection; clones share it.
#[derive(Clone)]
pub(super) struct Proxy {
    socket: &'static str,
    connection: Arc<Mutex<Option<SendRequest<RequestBody>>>>,
    /// Told of every call that is passed on.
    used: Arc<Notify>,
    /// Calls that are passed on to other nodes.
    calls: Calls,
    /// Their names' addresses.
    lookups: Lookups,
    /// Calls for several nodes.
    several: Arc<Semaphore>,
    uploads: Uploads,
}

/// A caller who asks nothing for this long, or up to twice that, costs no connection to machined: long enough for the next of a row of
/// questions, short enough that a crowd whose members each ask once never has many.
const IDLE: Duration = Duration::from_millis(100);
/// Calls for several nodes at a time, whoever asks: question and answers are held meanwhile.
const SEVERAL: usize = 8;

impl Proxy {
    /// Connects when the first call comes.
    pub(super) fn new(socket: &'static str, lookups: Lookups) -> Self {
        Proxy {
            socket,
            connection: Arc::default(),
            used: Arc::default(),
            calls: Calls::default(),
            lookups,
            several: Arc::new(Semaphore::new(SEVERAL)),
            uploads: Uploads::new(),
        }
    }

    /// The way of another caller, who shares no connection with this one.
    pub(super) fn for_another(&self) -> Self {
        Proxy {
            connection: Arc::default(),
            used: Arc::default(),
            ..self.clone()
        }
    }

    /// Lets the connection go whenever nothing was passed on for a while: idle callers cost little then. Calls that are under way go
    /// on to their end.
    pub(super) async fn rest_when_idle(&self) -> Infallible {
        loop {
            self.used.notified().await;
            // A look now and then: a timer of its own would cost each call more.
            loop {
                sleep(IDLE).await;
                let used_since = timeout(Duration::ZERO, self.used.notified()).await;
                if used_since.is_err() {
                    break;
                }
            }
            *self.connection.lock().await = None;
        }
    }

    /// Answers a call: by machined or by other nodes if the caller may make it, with a status otherwise.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        caller: &Caller,
        credentials: &Arc<Credentials>,
    ) -> Response<Body> {
        let caller = Caller {
            roles: impersonation::roles_in_force(&caller.roles, request.headers()),
            peer: caller.peer,
        };
        // For whichever node it is: that one judges once more, by its own table.
        if !permissions::may_call(request.uri().path(), &caller.roles, credentials.mode()) {
            return refuse(Code::PermissionDenied, "not authorized");
        }
        let room = match credentials.mode() {
            Mode::Normal if !caller.may_bring_much() => Room::Small,
            // Whoever comes may bring the config.
            Mode::Normal | Mode::Maintenance => Room::Large,
        };
        let request = request.map(|body| self.uploads.body(body, room));
        let overdrawn = request.body().overdrawn();
        let answer = self.send(request, caller, credentials).await;
        match overdrawn.is_so() {
            false => answer,
            true => refuse(
                Code::ResourceExhausted,
                "too much is being sent to this node at a time; try again",
            ),
        }
    }

    /// Sends a call to where it is for.
    async fn send(
        &self,
        request: Request<Upload>,
        caller: Caller,
        credentials: &Arc<Credentials>,
    ) -> Response<Body> {
        let target = match credentials.mode() {
            Mode::Normal => target::of(&request, credentials),
            Mode::Maintenance => Ok(Target::Here),
        };
        match target {
            Ok(Target::Here) => self.answer(request, &caller).await,
            Ok(Target::Other(other)) => {
                let request = request.map(Either::Left);
                let answer = self.call(&other, request, &caller, credentials);
                // Boxed, like the next one: what few calls need is not to make the future of every call large.
                match Box::pin(answer).await {
                    Ok(response) => response.map(Either::Left),
                    Err(error) => refuse(error.code(), &error.to_string()),
                }
            }
            Ok(Target::Several(nodes)) => {
                let ways = Ways {
                    here: self.clone(),
                    credentials: credentials.clone(),
                    caller,
                };
                Box::pin(several::ask(nodes, request, ways)).await
            }
            Err((code, message)) => refuse(code, message),
        }
    }

    /// The places for calls for several nodes.
    pub(super) fn several(&self) -> &Semaphore {
        &self.several
    }

    /// Has another node answer a call, or this one, where the name leads here.
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
            Other::Name(name) => self.lookups.addresses(name).await?,
        };
        let is_own = |address: &IpAddr| credentials.is_own_address(*address);
        if !addresses.iter().any(is_own) {
            let (roles, calls) = (&caller.roles, &self.calls);
            return peers.call(other, &addresses, request, roles, calls).await;
        }
        // Whoever answers for DNS must not choose which node is reset: this one has to be called so, as others have.
        if !credentials.is_certified_for(other) {
            return Err(CallError::NotThisNode(other.clone()));
        }
        Ok(self.pass_on(request, caller).await?)
    }

    /// Answers a call by machined.
    async fn answer(&self, request: Request<Upload>, caller: &Caller) -> Response<Body> {
        match self.pass_on(request.map(Either::Left), caller).await {
            Ok(response) => response.map(Either::Left),
            Err(error) => refuse(Code::Unavailable, &format!("{error:#}")),
        }
    }

    /// Has machined answer. An error says that it was not reached.
    pub(super) async fn pass_on(
        &self,
        request: Request<RequestBody>,
        caller: &Caller,
    ) -> anyhow::Result<Response<Incoming>> {
        let method = request.uri().path().to_owned();
        let passed_on = self.try_to_pass_on(request, caller).await;
        let mut response = passed_on.context("machined does not answer")?;
        explain_unimplemented(response.headers_mut(), &method);
        Ok(response)
    }

    async fn try_to_pass_on(
        &self,
        request: Request<RequestBody>,
        caller: &Caller,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut sender = self.connection().await?;
        let (mut parts, body) = request.into_parts();
        parts.uri = at(&parts.uri, "http", "machined")?;
        set_caller(&mut parts.headers, caller)?;
        Ok(sender
            .send_request(Request::from_parts(parts, body))
            .await?)
    }

    /// The connection, made anew when there is none or it has ended (machined was restarted).
    async fn connection(&self) -> anyhow::Result<SendRequest<RequestBody>> {
        self.used.notify_one();
        let mut shared = self.connection.lock().await;
        if let Some(sender) = shared.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = UnixStream::connect(self.socket)
            .await
            .context("connect to machined")?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await?;
        tokio::spawn(connection);
        *shared = Some(sender.clone());
        Ok(sender)
    }
}

/// An answer that only says why there is none.
pub(super) fn refuse(code: Code, message: &str) -> Response<Body> {
    grpc_status::reply::<Empty<Bytes>>(code, message).map(|body| Either::Right(body.boxed_unsync()))
}

/// The same method elsewhere.
pub(super) fn at(method: &Uri, scheme: &str, authority: &str) -> anyhow::Result<Uri> {
    let path = method.path_and_query().context("the request has no path")?;
    let moved = Uri::builder().scheme(scheme).authority(authority);
    Ok(moved.path_and_query(path.clone()).build()?)
}

/// Drops what a caller claims about itself.
pub(super) fn drop_claims(headers: &mut HeaderMap) {
    headers.remove(ROLES);
    headers.remove(PEER);
}

/// What the caller claims about itself is dropped; what the certificate says is put in.
fn set_caller(headers: &mut HeaderMap, caller: &Caller) -> anyhow::Result<()> {
    // Only roles that mean something: a name with a comma in it must not become two.
    let roles = instar_pki::roles_to_list(&caller.roles);
    headers.insert(ROLES, HeaderValue::from_str(&roles)?);
    headers.insert(PEER, HeaderValue::from_str(&caller.peer.to_string())?);
    Ok(())
}

/// A method that nobody serves is answered without a word; the caller may at least know which one it was, and what it would take.
fn explain_unimplemented(headers: &mut HeaderMap, method: &str) {
    let unimplemented = headers.get("grpc-status").is_some_and(|code| code == "12");
    let silent = headers
        .get("grpc-message")
        .is_none_or(HeaderValue::is_empty);
    if unimplemented
        && silent
        && let Some(message) = grpc_status::message(&unserved(method))
    {
        headers.insert("grpc-message", message);
    }
}

fn unserved(method: &str) -> String {
    match method.strip_prefix("/machine.MachineService/Etcd") {
        Some(_) => format!("{method}: this node runs no Kubernetes, and so no etcd"),
        None => format!("this version does not serve {method}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_is_explained() {
        let explained_of = |method, code: &'static str, message: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", HeaderValue::from_static(code));
            if let Some(message) = message {
                headers.insert("grpc-message", HeaderValue::from_static(message));
            }
            explain_unimplemented(&mut headers, method);
            let message = headers.get("grpc-message");
            message.map(|message| message.to_str().unwrap_or_default().to_owned())
        };
        let explained = |code, message| explained_of("/a.B/C", code, message);
        let etcd = explained_of("/machine.MachineService/EtcdStatus", "12", None);
        assert!(etcd.is_some_and(|said| said.contains("EtcdStatus") && said.contains("no etcd")));
        let said = explained("12", None).unwrap_or_default();
        assert!(said.ends_with("/a.B/C"), "{said}");
        assert!(explained("12", Some("")).is_some_and(|said| said.ends_with("/a.B/C")));
        assert_eq!(explained("12", Some("etcd")).as_deref(), Some("etcd"));
        assert_eq!(explained("5", None), None);
    }
}
