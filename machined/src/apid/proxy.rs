//! Passing calls on to machined: an HTTP/2 connection over the unix socket for each of the callers' connections. One for all would be
//! in the hands of each: what somebody does not read takes of a window that the others need.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
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

use super::counted::Counted;
use super::flag::Flag;
use super::grpc_status::{self, Code};
use super::identity::{Caller, Credentials, Mode};
use super::lookup::Lookups;
use super::other::Other;
use super::peers::{CallError, Calls};
use super::revocable::{Revocable, Revocation};
use super::several::{self, Ways};
use super::target::{self, Target};
use super::uploads::{Room, Upload, Uploads};
use super::{impersonation, permissions};
use crate::base::quota::{Quota, Rank};

/// The answer to who would change a node that has no config and holds data.
const CLOSED: &str = "not authorized: this machine may hold data and cannot read its machine config, so nobody may change it (its status says why); boot it with the kernel argument instar.maintenance=open to let anybody bring a config";
/// Roles of the caller; only apid may set it.
const ROLES: HeaderName = HeaderName::from_static("instar-roles");
/// Address of the caller; only apid may set it.
const PEER: HeaderName = HeaderName::from_static("instar-peer");

/// The certificates that the caller showed, each DER in base64, its own first, with commas between them; only apid may set it.
const CERTIFICATES: HeaderName = HeaderName::from_static("instar-certificates");

/// What goes to machined and to other nodes: a caller's own body, or one that is sent to several nodes.
pub(super) type RequestBody = Either<Revocable<Upload>, Revocable<Full<Bytes>>>;
/// What goes back: as it came, or made here.
pub(super) type Body = Either<Incoming, UnsyncBoxBody<Bytes, Infallible>>;

/// The way to machined of one caller's connection; clones share it.
#[derive(Clone)]
pub(super) struct Proxy {
    own: Arc<Own>,
    shared: Arc<Shared>,
}

/// What each caller's connection has of its own.
#[derive(Default)]
struct Own {
    connection: Mutex<Option<SendRequest<RequestBody>>>,
    /// Told of every call that is passed on.
    used: Notify,
}

/// What all of them share.
struct Shared {
    socket: &'static str,
    /// Calls that are under way.
    under_way: Quota,
    /// Calls that are passed on to other nodes.
    calls: Calls,
    /// Their names' addresses.
    lookups: Lookups,
    /// Calls for several nodes.
    several: Quota,
    uploads: Uploads,
}

/// A caller who asks nothing for this long, or up to twice that, costs no connection to machined: long enough for the next of a row of
/// questions, short enough that a crowd whose members each ask once never has many.
const IDLE: Duration = Duration::from_millis(100);
/// Calls for several nodes at a time, whoever asks: question and answers are held meanwhile. All but two may be of others than
/// administrators.
const SEVERAL: usize = 8;
/// Calls at a time of all who are no administrators: each may have an answer that is not read.
const OTHERS_CALLS: usize = 512;
/// What of answers to one caller who is no administrator may be here unread, per call and in all, in bytes. It comes over a socket of this
/// machine, so more would make nothing faster.
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
                uploads: Uploads::new(),
            }),
        }
    }

    /// The way of another caller, who shares no connection with this one.
    pub(super) fn for_another(&self) -> Self {
        Proxy {
            own: Arc::default(),
            shared: self.shared.clone(),
        }
    }

    /// Lets the connection go whenever nothing was passed on for a while: idle callers cost little then. Calls that are under way go
    /// on to their end.
    pub(super) async fn rest_when_idle(&self) -> Infallible {
        loop {
            self.own.used.notified().await;
            // A look now and then: a timer of its own would cost each call more.
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

    /// Answers a call: by machined or by other nodes if the caller may make it, with a status otherwise. A caller who loses its standing
    /// before the request is whole is refused as well.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        caller: &Caller,
        lost: &Flag,
        credentials: &Arc<Credentials>,
    ) -> Response<Counted<Body>> {
        let caller = Caller {
            roles: impersonation::roles_in_force(&caller.roles, request.headers()),
            ..caller.clone()
        };
        let refused = |code, message| refuse(code, message).map(Counted::free);
        // For whichever node it is: that one judges once more, by its own table.
        if !permissions::may_call(request.uri().path(), &caller.roles, credentials.mode()) {
            let why = match credentials.mode() {
                Mode::Closed => CLOSED,
                Mode::Normal | Mode::Maintenance => "not authorized",
            };
            return refused(Code::PermissionDenied, why);
        }
        let rank = match credentials.mode() {
            // A stranger who holds all of them would keep out the one who brings the config, whom nothing tells from others.
            Mode::Maintenance => Rank::Administrator,
            Mode::Normal | Mode::Closed => caller.rank(),
        };
        let Some(place) = self.shared.under_way.try_acquire(rank) else {
            return refused(
                Code::ResourceExhausted,
                "too many calls are under way on this node; try again when some have ended",
            );
        };
        let room = match credentials.mode() {
            Mode::Normal | Mode::Closed if !caller.may_bring_much() => Room::Small,
            // Whoever comes may bring the config.
            Mode::Normal | Mode::Maintenance | Mode::Closed => Room::Large,
        };
        let request = request.map(|body| self.shared.uploads.body(body, room));
        let overdrawn = request.body().overdrawn();
        let revocation = Revocation::by(lost);
        let answer = self.send(request, caller, &revocation, credentials).await;
        let answer = match (overdrawn.is_so(), revocation.has_cut_off()) {
            (false, false) => answer,
            (_, true) => refuse(Code::Unauthenticated, NO_LONGER_ACCEPTED),
            (true, _) => refuse(
                Code::ResourceExhausted,
                "too much is being sent to this node at a time; try again",
            ),
        };
        answer.map(|body| Counted::new(body, place))
    }

    /// Sends a call to where it is for.
    async fn send(
        &self,
        request: Request<Upload>,
        caller: Caller,
        revocation: &Revocation,
        credentials: &Arc<Credentials>,
    ) -> Response<Body> {
        let request = request.map(|body| revocation.guard(body));
        let target = match credentials.mode() {
            Mode::Normal => target::of(&request, credentials),
            Mode::Maintenance | Mode::Closed => Ok(Target::Here),
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
                    revocation: revocation.clone(),
                };
                Box::pin(several::ask(nodes, request, ways)).await
            }
            Err((code, message)) => refuse(code, message),
        }
    }

    /// The places for calls for several nodes.
    pub(super) fn several(&self) -> &Quota {
        &self.shared.several
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
            Other::Name(name) => self.shared.lookups.addresses(name, caller.rank()).await?,
        };
        let is_own = |address: &IpAddr| credentials.is_own_address(*address);
        if !addresses.iter().any(is_own) {
            let (roles, calls) = (&caller.roles, &self.shared.calls);
            return peers.call(other, &addresses, request, roles, calls).await;
        }
        // Whoever answers for DNS must not choose which node is reset: this one has to be called so, as others have.
        if !credentials.is_certified_for(other) {
            return Err(CallError::NotThisNode(other.clone()));
        }
        Ok(self.pass_on(request, caller).await?)
    }

    /// Answers a call by machined.
    async fn answer(&self, request: Request<Revocable<Upload>>, caller: &Caller) -> Response<Body> {
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
        tokio::spawn(connection);
        *current = Some(sender.clone());
        Ok(sender)
    }
}

/// What a caller is told whose authority was removed.
pub(super) const NO_LONGER_ACCEPTED: &str = "the certificate is no longer accepted";

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
    headers.remove(CERTIFICATES);
}

/// What the caller claims about itself is dropped; what the certificate says is put in, and where it is judged again, the certificate.
fn set_caller(
    headers: &mut HeaderMap,
    caller: &Caller,
    is_judged_again: bool,
) -> anyhow::Result<()> {
    drop_claims(headers);
    // Only roles that mean something: a name with a comma in it must not become two.
    let roles = instar_pki::roles_to_list(&caller.roles);
    headers.insert(ROLES, HeaderValue::from_str(&roles)?);
    headers.insert(PEER, HeaderValue::from_str(&caller.peer.to_string())?);
    if is_judged_again && !caller.certificates.is_empty() {
        let certificates = caller.certificates.iter();
        let encoded: Vec<String> = certificates.map(|der| BASE64.encode(der)).collect();
        headers.insert(CERTIFICATES, HeaderValue::from_str(&encoded.join(","))?);
    }
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
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_pki::Role;
    use rustls_pki_types::CertificateDer;

    #[test]
    fn machined_is_told_who_calls_and_nothing_that_callers_claim() {
        let caller = Caller {
            roles: vec![Role::Reader],
            peer: "192.0.2.1:7".parse().unwrap(),
            certificates: [[1].to_vec(), [2].to_vec()]
                .map(CertificateDer::from)
                .into(),
        };
        let told = |is_judged_again| {
            let mut headers = HeaderMap::new();
            for name in [ROLES, PEER, CERTIFICATES] {
                headers.append(&name, HeaderValue::from_static("os:admin"));
                headers.append(name, HeaderValue::from_static("os:admin"));
            }
            set_caller(&mut headers, &caller, is_judged_again).unwrap();
            let all = |name| {
                let values = headers.get_all(name).iter();
                values
                    .map(|value| value.to_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            [all(ROLES), all(PEER), all(CERTIFICATES)].concat()
        };
        assert_eq!(told(false), ["os:reader", "192.0.2.1:7"]);
        assert_eq!(told(true), ["os:reader", "192.0.2.1:7", "AQ==,Ag=="]);
    }

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
