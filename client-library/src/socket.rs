//! The unix socket of a node's API, as a node's own pods see it: `unix:///path`. No certificate is needed there: whoever may open the socket may
//! make the calls that the node allows to it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint as Transport, Uri};

use crate::connection::{ConnectError, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};

/// The beginning of an endpoint that is a socket.
const SCHEME: &str = "unix://";

/// The path of a socket, if the endpoint is one.
pub(crate) fn path_of(endpoint: &str) -> Option<PathBuf> {
    let path = Path::new(endpoint.trim().strip_prefix(SCHEME)?);
    path.is_absolute().then(|| path.to_owned())
}

/// Connects to one socket, whenever the channel asks.
#[derive(Clone)]
struct Dialer(PathBuf);

impl Dialer {
    async fn dial(self) -> Result<TokioIo<UnixStream>, ConnectError> {
        let stream = UnixStream::connect(&self.0).await;
        let stream = stream.map_err(|source| ConnectError::Socket {
            path: self.0.clone(),
            source,
        })?;
        Ok(TokioIo::new(stream))
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<UnixStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}

/// A channel to the node at this socket; it connects at its first call, and again whenever a call finds the link broken.
pub(crate) fn channel(path: &Path) -> Channel {
    let transport = Transport::from(Uri::from_static("http://node"))
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    transport.connect_with_connector_lazy(Dialer(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_absolute_path_is_a_socket() {
        assert_eq!(
            path_of(" unix:///host/run/instar/api.sock"),
            Some("/host/run/instar/api.sock".into())
        );
        for other in ["unix://run/x", "unix:", "10.0.0.1", "https://x", ""] {
            assert_eq!(path_of(other), None, "{other}");
        }
    }
}
