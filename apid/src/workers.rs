//! Connections of machines that want a certificate, on a port of their own. They have no certificate yet, so they show none: the one method
//! of this port carries a token, which machined checks.
//!
//! The decision: apid serves the port, as its callers are strangers, and passes on nothing but this method. The authority's key and the
//! token stay in machined. A process of its own was the other choice: it would be as small a door as this one, and cost each node of a
//! control plane some megabytes.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::handed_sockets::{self, next_connection};
use super::identity::Credentials;
use super::proxy::Proxy;
use super::unauthenticated_limit::UnauthenticatedLimit;
use super::{Arrived, serve_connection};

/// Limit on connections at a time. A further one takes the place of another.
const CONNECTIONS: usize = 64;
/// Timeout for a connection as a whole: it is for one short call.
const LONGEST: Duration = Duration::from_secs(20);

/// The listening socket for workers.
pub(super) type WorkersListener = Arc<TcpListener>;

/// Takes a listening socket.
pub(super) fn listener(socket: OwnedFd) -> anyhow::Result<WorkersListener> {
    handed_sockets::tcp(socket).context("take the socket for workers")
}

/// Accepts connections on the newest socket, while there is one. Each has a place among those of all callers, too.
pub(super) async fn accept(
    mut listeners: watch::Receiver<Option<WorkersListener>>,
    credentials: watch::Receiver<Arc<Credentials>>,
    proxy: Proxy,
    places: Arc<Semaphore>,
    draining: watch::Receiver<bool>,
) -> Infallible {
    let limit = UnauthenticatedLimit::new(CONNECTIONS);
    loop {
        let places = [&places];
        let arriving = next_connection(&mut listeners, &places, "a worker's connection");
        let ((stream, _), held) = arriving.await;
        let (credentials, proxy) = (credentials.clone(), proxy.for_another());
        let draining = draining.clone();
        limit.admit(|unknown| {
            let arrived = Arrived::Worker(stream, unknown);
            let served = serve_connection(arrived, credentials, proxy, draining);
            let connection = async move {
                // The errors of an unknown client's connection are not logged, or anyone could fill the log.
                let _ = tokio::time::timeout(LONGEST, served).await;
                drop(held);
            };
            instar_base::task::spawn(connection).abort_handle()
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::identity::tests::credentials;
    use crate::lookup::Lookups;
    use http::Request;
    use http_body_util::Empty;
    use hyper::body::Bytes;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use instar_api::CERTIFICATE_METHOD;
    use std::net::SocketAddr;
    use tokio::net::TcpStream;

    /// Serves workers at an address of its own, without a machined.
    fn serve() -> (SocketAddr, impl Future<Output = Infallible>) {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let given = Some(listener(socket.into()).unwrap());
        let (lookups, questions) = Lookups::new();
        let node = watch::channel(Arc::new(credentials(&["127.0.0.1"], true)));
        let listeners = watch::channel(given);
        let draining = watch::channel(false);
        let serving = async move {
            let _kept = (&node.0, &listeners.0, &draining.0, questions);
            accept(
                listeners.1.clone(),
                node.1.clone(),
                Proxy::new("/nowhere", lookups),
                Arc::new(Semaphore::new(8)),
                draining.1.clone(),
            )
            .await
        };
        (address, serving)
    }

    /// Returns the status with which a call is answered, and its message.
    async fn ask(address: SocketAddr, method: &str) -> (String, String) {
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = crate::tls::tests::without_a_certificate(stream).await;
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let request = Request::post(format!("https://node{method}"))
            .header("talos-role", "os:admin")
            .header("instar-roles", "os:admin")
            .header("node", "10.0.0.9")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let header = |name| answer.headers().get(name).unwrap().to_str().unwrap();
        (
            header("grpc-status").to_owned(),
            header("grpc-message").to_owned(),
        )
    }

    #[tokio::test]
    async fn one_method_is_passed_on_and_no_other() {
        let (address, serving) = serve();
        let asked = async {
            for (method, expected) in [
                // 14: machined, which is not there, would have been asked.
                (CERTIFICATE_METHOD, "14"),
                ("/machine.MachineService/Version", "7"),
                ("/machine.MachineService/ApplyConfiguration", "7"),
                ("/cosi.resource.State/Get", "7"),
                ("/securityapi.SecurityService/Other", "7"),
            ] {
                let (status, message) = ask(address, method).await;
                assert_eq!(status, expected, "{method}: {message}");
            }
        };
        tokio::select! {
            never = serving => match never {},
            () = asked => {}
        }
    }
}
