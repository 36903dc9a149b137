//! Connections of pods of this node. They come over a unix socket that machined makes in the container of Kubernetes, and without a
//! certificate: whoever can open the socket may upgrade the node and read, and nothing else.
//!
//! The decision: apid serves it, as its callers are strangers, too. machined, which makes the socket and hands it over, reads not a byte of
//! them. A certificate in a file of each node was the other choice: it would have to be renewed, and could be copied to elsewhere.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};

use super::handed_sockets::{self, next_connection};
use super::identity::Credentials;
use super::proxy::Proxy;
use super::{Arrived, serve_connection};

/// Limit on connections of pods at a time. More wait in the listen queue.
const CONNECTIONS: usize = 32;

/// The listening socket for pods.
pub(super) type PodsListener = Arc<UnixListener>;

/// Takes a listening socket.
pub(super) fn listener(socket: OwnedFd) -> anyhow::Result<PodsListener> {
    handed_sockets::unix(socket).context("take the socket for pods")
}

/// Accepts connections of pods on the newest socket, once there is one. Each has a place among those of all callers, too.
pub(super) async fn accept(
    mut listeners: watch::Receiver<Option<PodsListener>>,
    credentials: watch::Receiver<Arc<Credentials>>,
    proxy: Proxy,
    places: Arc<Semaphore>,
    draining: watch::Receiver<bool>,
) -> Infallible {
    let own = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let places = [&own, &places];
        let arriving = next_connection(&mut listeners, &places, "a pod's connection");
        let (stream, held) = arriving.await;
        let (credentials, proxy) = (credentials.clone(), proxy.for_another());
        let draining = draining.clone();
        instar_base::task::spawn(async move {
            let served = serve_connection(Arrived::Pod(stream), credentials, proxy, draining);
            // A pod ends its connection as it likes, and could fill the log.
            let _ = served.await;
            drop(held);
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
    use tokio::net::UnixStream;

    /// Serves pods at a socket of this path, without a machined.
    fn serve(path: &std::path::Path) -> impl Future<Output = Infallible> {
        let socket = std::os::unix::net::UnixListener::bind(path).unwrap();
        let given = Some(listener(socket.into()).unwrap());
        let (lookups, questions) = Lookups::new();
        let node = watch::channel(Arc::new(credentials(&["node"], true)));
        let listeners = watch::channel(given);
        let draining = watch::channel(false);
        async move {
            let _kept = (&node.0, &listeners.0, &draining.0, questions);
            let proxy = Proxy::new("/nowhere", lookups);
            let places = Arc::new(Semaphore::new(8));
            accept(
                listeners.1.clone(),
                node.1.clone(),
                proxy,
                places,
                draining.1.clone(),
            )
            .await
        }
    }

    /// Returns the status with which a call is answered, and its message.
    async fn ask(
        path: &std::path::Path,
        method: &str,
        metadata: &[(&str, &str)],
    ) -> (String, String) {
        let stream = UnixStream::connect(path).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let mut request = Request::post(format!("http://node{method}"));
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let header = |name| answer.headers().get(name).unwrap().to_str().unwrap();
        (
            header("grpc-status").to_owned(),
            header("grpc-message").to_owned(),
        )
    }

    #[tokio::test]
    async fn a_pod_may_upgrade_this_node_and_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let asked = async {
            for (method, metadata, expected) in [
                // 14: machined, which is not there, would have been asked.
                ("Upgrade", &[][..], "14"),
                ("Version", &[], "14"),
                ("Upgrade", &[("node", "node")], "14"),
                ("Reset", &[], "7"),
                ("ApplyConfiguration", &[], "7"),
                ("Reset", &[("talos-role", "os:admin")], "7"),
                ("Upgrade", &[("node", "10.0.0.7")], "7"),
                ("Version", &[("nodes", "node"), ("nodes", "10.0.0.7")], "7"),
            ] {
                let method = format!("/machine.MachineService/{method}");
                let (status, message) = ask(&path, &method, metadata).await;
                assert_eq!(status, expected, "{method} {metadata:?}: {message}");
                let message = percent_encoding::percent_decode_str(&message).decode_utf8();
                let is_away = instar_api::answers::is_away(&message.unwrap());
                assert_eq!(is_away, expected == "14", "{method} {metadata:?}");
            }
        };
        tokio::select! {
            never = serve(&path) => match never {},
            () = asked => {}
        }
    }
}
