//! TCP and TLS to one endpoint, and a gRPC channel over it that reconnects when the link breaks.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use instar_base::first_address::first_that_answers;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint as Transport, Uri};

use crate::endpoint::Endpoint;
use crate::failure::{Failure, FailureKind};

mod unverified;

/// Timeout for TCP and TLS together. A node that is between two generations lets a connection wait.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of keepalive pings on a silent link.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of a keepalive ping; then the link is given up.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The advice if the node does not accept the client's certificate.
pub(crate) const REFUSED_CERTIFICATE: &str = "the node refused the client's certificate: it is not from its authority, has expired, or the clocks differ";

/// The authentication of both sides.
pub enum Trust {
    /// Both sides by a certificate of the machine's authority; the server by one of these fingerprints instead, if there are any.
    Mutual {
        /// Fingerprints as a node's console shows them: base64 of the SHA-256 of the certificate's public key.
        fingerprints: Vec<String>,
        /// The machine's authorities.
        authorities: Vec<CertificateDer<'static>>,
        /// The client's certificate, followed by the certificates between it and the authority.
        certificates: Vec<CertificateDer<'static>>,
        /// The client's key.
        key: PrivateKeyDer<'static>,
    },
    /// The server by one of these fingerprints, or not at all if there are none; no authentication of the client.
    Insecure {
        /// Fingerprints as in `Mutual`.
        fingerprints: Vec<String>,
    },
}

impl Trust {
    /// The configuration for the TLS library.
    ///
    /// # Errors
    /// The certificates or the key are not valid.
    pub fn into_tls(self) -> Result<Arc<ClientConfig>, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let mut config = match self {
            Self::Mutual {
                fingerprints,
                certificates,
                key,
                ..
            } if !fingerprints.is_empty() => builder
                .dangerous()
                .with_custom_certificate_verifier(unverified::verifier(fingerprints, provider))
                .with_client_auth_cert(certificates, key)?,
            Self::Mutual {
                authorities,
                certificates,
                key,
                ..
            } => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority)?;
                }
                builder
                    .with_root_certificates(roots)
                    .with_client_auth_cert(certificates, key)?
            }
            Self::Insecure { fingerprints } => builder
                .dangerous()
                .with_custom_certificate_verifier(unverified::verifier(fingerprints, provider))
                .with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A node that came back has lost all sessions.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The TCP connection failed.
    #[error("cannot connect to {endpoint}")]
    Tcp {
        /// The endpoint.
        endpoint: Endpoint,
        /// The cause.
        source: io::Error,
    },
    /// The connection to the unix socket failed.
    #[error("cannot connect to {}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// TCP or TLS timed out.
    #[error("{endpoint} does not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Silent {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// The two sides do not accept each other, or the other side is not a node.
    #[error("no TLS connection to {endpoint}")]
    Tls {
        /// The endpoint.
        endpoint: Endpoint,
        /// The cause.
        source: io::Error,
    },
}

impl ConnectError {
    fn tls_error(&self) -> Option<&rustls::Error> {
        match self {
            Self::Tls { source, .. } => rustls_error(source),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> FailureKind {
        match self.tls_error() {
            Some(rustls::Error::AlertReceived(_) | rustls::Error::InvalidCertificate(_)) => {
                FailureKind::NotAuthorized
            }
            _ => FailureKind::Unreachable,
        }
    }

    /// Advice for the user.
    pub(crate) fn advice(&self) -> String {
        match self {
            Self::Socket { path, .. } => format!(
                "check that {} is there: a node makes it for its pods, /run/instar/api.sock on the node; it is away for a moment while the node changes its version",
                path.display()
            ),
            Self::Tcp { endpoint, .. } | Self::Silent { endpoint } => format!(
                "check that the node runs, that {endpoint} is its address, and for a virtual machine that port {} of the guest is forwarded there; -e names another endpoint",
                instar_api::PORT
            ),
            Self::Tls { endpoint, .. } => match self.tls_error() {
                Some(error) => tls_advice(endpoint, error),
                None => format!(
                    "{endpoint} closed the connection: check that it is the API of a node and not something else"
                ),
            },
        }
    }
}

/// Advice for the user about a TLS error.
pub(crate) fn tls_advice(endpoint: &Endpoint, error: &rustls::Error) -> String {
    use CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(
            Bad::NotValidForName | Bad::NotValidForNameContext { .. },
        ) => format!(
            "the node's certificate does not name {:?}: connect by an address or name that it has, or put this one into machine.certSANs of its config (gen config --additional-sans)",
            endpoint.host()
        ),
        rustls::Error::InvalidCertificate(
            Bad::Expired
            | Bad::ExpiredContext { .. }
            | Bad::NotValidYet
            | Bad::NotValidYetContext { .. },
        ) => "compare the node's clock with this machine's".to_owned(),
        rustls::Error::InvalidCertificate(Bad::ApplicationVerificationFailure) => format!(
            "the node at {endpoint} has another key than --cert-fingerprint says: compare it with the one on its console"
        ),
        rustls::Error::InvalidCertificate(_) => format!(
            "the node at {endpoint} belongs to another authority than the client configuration: use the one that was made together with its machine config, or choose its --context"
        ),
        rustls::Error::AlertReceived(_) => REFUSED_CERTIFICATE.to_owned(),
        _ => format!("check that {endpoint} is the API of a node and not something else"),
    }
}

/// The TLS library's error inside an I/O error.
fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// The first error of type `E` in a chain of causes.
pub(crate) fn find_cause<'a, E: Error + 'static>(
    error: &'a (dyn Error + 'static),
) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// A TLS error anywhere in a chain of causes, also inside I/O errors, which hide the error that they wrap.
pub(crate) fn find_tls_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>().and_then(rustls_error) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Whether the node ended the connection with a TLS alert. Decided by the text: the HTTP/2 library keeps nothing else of an I/O error.
pub(crate) fn is_tls_alert(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.to_string().contains("received fatal alert") {
            return true;
        }
        next = error.source();
    }
    false
}

/// Connects to one of a host's addresses: a name may stand for several nodes, of which one is off.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let found = tokio::net::lookup_host((host, port)).await?;
    // The caller's timeout comes first, and has words of its own.
    let (stream, _) = first_that_answers(found.collect(), CONNECT_TIMEOUT * 2).await?;
    Ok(stream)
}

/// Connects to one endpoint, whenever the channel asks.
#[derive(Clone)]
struct Dialer {
    endpoint: Endpoint,
    tls: TlsConnector,
}

impl Dialer {
    async fn dial(self) -> Result<TokioIo<BufReader<TlsStream<TcpStream>>>, ConnectError> {
        let endpoint = self.endpoint.clone();
        let both = async {
            let connected = connect_tcp(endpoint.host(), endpoint.port()).await;
            let tcp = connected.map_err(|source| ConnectError::Tcp {
                endpoint: endpoint.clone(),
                source,
            })?;
            let tls_error = |source| ConnectError::Tls {
                endpoint: endpoint.clone(),
                source,
            };
            tcp.set_nodelay(true).map_err(tls_error)?;
            let name = endpoint
                .server_name()
                .map_err(|error| tls_error(io::Error::other(error)))?;
            let stream = self.tls.connect(name, tcp).await.map_err(tls_error)?;
            // In TLS 1.3 the node checks the client's certificate after the client's handshake is done, and a client that writes meanwhile
            // can lose the alert to a reset. So it waits for the node's first bytes: an HTTP/2 server begins with its settings (RFC 9113,
            // 3.4), whatever the client does.
            let mut stream = BufReader::new(stream);
            if stream.fill_buf().await.map_err(tls_error)?.is_empty() {
                return Err(tls_error(io::ErrorKind::UnexpectedEof.into()));
            }
            Ok::<_, ConnectError>(TokioIo::new(stream))
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, both).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Silent { endpoint }),
        }
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<BufReader<TlsStream<TcpStream>>>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().dial())
    }
}

/// A channel to the endpoint, connected once; it reconnects by itself when a call finds the link broken.
///
/// # Errors
/// The connection failed. The cause is a [`ConnectError`] somewhere in its chain.
pub async fn connect(endpoint: &Endpoint, tls: Arc<ClientConfig>) -> Result<Channel, Failure> {
    let (transport, dialer) = way(endpoint, tls)?;
    let connected = transport.connect_with_connector(dialer).await;
    connected.map_err(|error| not_connected(error, endpoint))
}

/// The same channel to an endpoint where nobody may answer yet: each call connects if there is no connection.
///
/// # Errors
/// The endpoint cannot be an address.
pub(crate) fn connect_later(
    endpoint: &Endpoint,
    tls: Arc<ClientConfig>,
) -> Result<Channel, Failure> {
    let (transport, dialer) = way(endpoint, tls)?;
    Ok(transport.connect_with_connector_lazy(dialer))
}

fn way(endpoint: &Endpoint, tls: Arc<ClientConfig>) -> Result<(Transport, Dialer), Failure> {
    let uri = |scheme: &str| {
        format!("{scheme}://{endpoint}")
            .parse::<Uri>()
            .map_err(|error| {
                Failure::new(
                    FailureKind::Usage,
                    format!("{endpoint} cannot be an address"),
                )
                .because(error)
            })
    };
    // The dialer itself does TLS; the server sees `origin`.
    let transport = Transport::from(uri("http")?)
        .origin(uri("https")?)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let dialer = Dialer {
        endpoint: endpoint.clone(),
        tls: TlsConnector::from(tls),
    };
    Ok((transport, dialer))
}

/// The failure of a connection: in the words of the [`ConnectError`], and not in those of the layers around it.
fn not_connected(error: impl Error + Send + Sync + 'static, endpoint: &Endpoint) -> Failure {
    let found = find_cause::<ConnectError>(&error);
    let found = found.map(|cause| (cause.kind(), cause.to_string(), cause.advice()));
    match found {
        Some((kind, text, advice)) => Failure::new(kind, text)
            .advise(advice)
            .because(Innermost(error)),
        None => Failure::new(
            FailureKind::Unreachable,
            format!("no connection to {endpoint}"),
        )
        .because(error),
    }
}

/// An error around a [`ConnectError`] that shows this one alone, and leaves out the words of the layers between.
#[derive(Debug)]
pub(crate) struct Innermost<E>(pub(crate) E);

impl<E: Error + 'static> fmt::Display for Innermost<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match find_cause::<ConnectError>(&self.0) {
            Some(cause) => fmt::Display::fmt(cause, f),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl<E: Error + 'static> Error for Innermost<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match find_cause::<ConnectError>(&self.0) {
            Some(cause) => Some(cause),
            None => self.0.source(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A layer of a library around an error.
    #[derive(Debug, thiserror::Error)]
    #[error("transport error")]
    struct Layer(#[source] ConnectError);

    #[test]
    fn a_failure_has_the_words_of_the_connection_alone() {
        let endpoint: Endpoint = "127.0.0.1:1".parse().unwrap();
        let source = io::ErrorKind::ConnectionRefused.into();
        let tcp = ConnectError::Tcp {
            endpoint: endpoint.clone(),
            source,
        };
        let failure = not_connected(Layer(tcp), &endpoint);
        assert_eq!(
            failure.chain(),
            "cannot connect to 127.0.0.1:1: connection refused"
        );
        assert_eq!(failure.kind(), FailureKind::Unreachable);
        assert!(find_cause::<ConnectError>(&failure).is_some());
        let other = not_connected(io::Error::other("no runtime"), &endpoint);
        assert_eq!(other.chain(), "no connection to 127.0.0.1:1: no runtime");
    }
}
