//! Connections to nodes whose certificate no authority of the client has signed: those without a config, and workers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::connect::{notices_silence, until_connected};
use crate::tls_client::TlsClient;

/// Connects to `HOST:PORT`, whatever certificate it shows.
pub(crate) async fn connect_to_any_server(
    endpoint: &str,
    client: TlsClient,
) -> anyhow::Result<Channel> {
    // The endpoint does not know that its connector speaks TLS.
    let origin: Uri = format!("https://{endpoint}").parse()?;
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?.origin(origin);
    let endpoint = notices_silence(endpoint);
    let config = client.believing_anybody().config()?;
    let connector = OverTls(TlsConnector::from(Arc::new(config)));
    let channel = until_connected(|| {
        let (endpoint, connector) = (endpoint.clone(), connector.clone());
        async move { endpoint.connect_with_connector(connector).await }
    });
    Ok(channel.await?)
}

#[derive(Clone)]
struct OverTls(TlsConnector);

impl Service<Uri> for OverTls {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move {
            let authority = to.authority().map_or("", |authority| authority.as_str());
            let tcp = TcpStream::connect(authority).await?;
            let name = ServerName::IpAddress(tcp.peer_addr()?.ip().into());
            Ok(TokioIo::new(connector.connect(name, tcp).await?))
        })
    }
}
