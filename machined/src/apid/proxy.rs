//! Passing calls on to machined: one HTTP/2 connection over the unix socket, shared by all callers.

use std::sync::Arc;

use anyhow::Context as _;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::grpc_status::{self, Code};
use super::identity::{Caller, Credentials, Mode};
use super::permissions;

/// Roles of the caller; only apid may set it.
const ROLES: HeaderName = HeaderName::from_static("instar-roles");
/// Address of the caller; only apid may set it.
const PEER: HeaderName = HeaderName::from_static("instar-peer");

type Body = Either<Incoming, Empty<Bytes>>;

/// Services whose calls may name several nodes at once. The messages of the others have no place for who answers.
const FOR_SEVERAL: [&str; 5] = [
    "machine.MachineService",
    "cluster.ClusterService",
    "inspect.InspectService",
    "storage.StorageService",
    "time.TimeService",
];

/// The way to machined; clones share one connection.
#[derive(Clone)]
pub(super) struct Proxy {
    socket: &'static str,
    connection: Arc<Mutex<Option<SendRequest<Incoming>>>>,
}

impl Proxy {
    /// Connects when the first call comes.
    pub(super) fn new(socket: &'static str) -> Self {
        Proxy {
            socket,
            connection: Arc::default(),
        }
    }

    /// Answers a call: by machined if the caller may make it, with a status otherwise.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        caller: &Caller,
        credentials: &Credentials,
    ) -> Response<Body> {
        let method = request.uri().path();
        if !permissions::may_call(method, &caller.roles, credentials.mode()) {
            return refuse(Code::PermissionDenied, "not authorized");
        }
        if credentials.mode() == Mode::Normal
            && let Err((code, message)) = check_target(&request, credentials)
        {
            return refuse(code, message);
        }
        let method = method.to_owned();
        match self.pass_on(request, caller).await {
            Ok(mut response) => {
                explain_unimplemented(response.headers_mut(), &method);
                response.map(Either::Left)
            }
            Err(error) => refuse(
                Code::Unavailable,
                &format!("machined does not answer: {error:#}"),
            ),
        }
    }

    async fn pass_on(
        &self,
        request: Request<Incoming>,
        caller: &Caller,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut sender = self.connection().await?;
        let (mut parts, body) = request.into_parts();
        let path = parts
            .uri
            .path_and_query()
            .context("the request has no path")?
            .clone();
        parts.uri = Uri::builder()
            .scheme("http")
            .authority("machined")
            .path_and_query(path)
            .build()?;
        set_caller(&mut parts.headers, caller)?;
        Ok(sender
            .send_request(Request::from_parts(parts, body))
            .await?)
    }

    /// The shared connection, made anew when the last one has ended (machined was restarted).
    async fn connection(&self) -> anyhow::Result<SendRequest<Incoming>> {
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

fn refuse(code: Code, message: &str) -> Response<Body> {
    grpc_status::reply::<Empty<Bytes>>(code, message).map(Either::Right)
}

/// What the caller claims about itself is dropped; what the certificate says is put in.
fn set_caller(headers: &mut HeaderMap, caller: &Caller) -> anyhow::Result<()> {
    // Only roles that mean something: a name with a comma in it must not become two.
    let roles = instar_pki::roles_to_list(&caller.roles);
    headers.insert(ROLES, HeaderValue::from_str(&roles)?);
    headers.insert(PEER, HeaderValue::from_str(&caller.peer.to_string())?);
    Ok(())
}

/// A method that nobody serves is answered without a word; the caller may at least know which one it was.
fn explain_unimplemented(headers: &mut HeaderMap, method: &str) {
    let unimplemented = headers.get("grpc-status").is_some_and(|code| code == "12");
    let silent = headers
        .get("grpc-message")
        .is_none_or(HeaderValue::is_empty);
    if unimplemented
        && silent
        && let Some(message) =
            grpc_status::message(&format!("this version does not serve {method}"))
    {
        headers.insert("grpc-message", message);
    }
}

/// `package.Service` of `/package.Service/Method`.
fn service_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or(path, |(service, _)| service)
}

/// Only calls for this node are served: by one of its names, or by what the caller dialled.
fn check_target<B>(
    request: &Request<B>,
    credentials: &Credentials,
) -> Result<(), (Code, &'static str)> {
    let headers = request.headers();
    if headers.contains_key("proxyfrom") {
        return Ok(());
    }
    let dialled = request.uri().host().unwrap_or_default();
    let is_here = |value: &HeaderValue| {
        let Ok(name) = value.to_str() else {
            return false;
        };
        let host = host_of(name);
        name.is_empty() || host == host_of(dialled) || credentials.is_this_node(host)
    };
    if headers.get_all("node").iter().count() > 1 {
        return Err((
            Code::InvalidArgument,
            "more than one value of node; use nodes for several",
        ));
    }
    if headers.contains_key("nodes") && !FOR_SEVERAL.contains(&service_of(request.uri().path())) {
        return Err((
            Code::InvalidArgument,
            "this service answers for one node at a time; use node instead of nodes",
        ));
    }
    let targets = headers
        .get_all("node")
        .iter()
        .chain(headers.get_all("nodes"));
    if targets.into_iter().all(is_here) {
        Ok(())
    } else {
        Err((
            Code::PermissionDenied,
            "no request forwarding: this node was asked for another one",
        ))
    }
}

/// The host of `host`, `host:port`, `[v6]` and `[v6]:port`.
fn host_of(name: &str) -> &str {
    if let Some(rest) = name.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match name.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_told_from_methods() {
        assert_eq!(service_of("/time.TimeService/Time"), "time.TimeService");
        assert_eq!(service_of("nonsense"), "nonsense");
    }

    #[test]
    fn only_silence_is_explained() {
        let explained = |code: &'static str, message: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", HeaderValue::from_static(code));
            if let Some(message) = message {
                headers.insert("grpc-message", HeaderValue::from_static(message));
            }
            explain_unimplemented(&mut headers, "/a.B/C");
            let message = headers.get("grpc-message");
            message.map(|message| message.to_str().unwrap_or_default().to_owned())
        };
        let said = explained("12", None).unwrap_or_default();
        assert!(said.ends_with("/a.B/C"), "{said}");
        assert!(explained("12", Some("")).is_some_and(|said| said.ends_with("/a.B/C")));
        assert_eq!(explained("12", Some("etcd")).as_deref(), Some("etcd"));
        assert_eq!(explained("5", None), None);
    }

    #[test]
    fn hosts_are_told_from_ports() {
        for (name, host) in [
            ("node", "node"),
            ("10.0.0.1:50000", "10.0.0.1"),
            ("[fd00::1]:50000", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            ("fd00::1", "fd00::1"),
        ] {
            assert_eq!(host_of(name), host);
        }
    }
}
