//! Calls to other nodes: passed on over mutual TLS, under this node's client certificate.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use instar_api::answers::{NO_FORWARDING, Unreached};
use instar_pki::{Role, may_all};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::exchange::{RequestBody, at};
use super::grpc_status::Code;
use super::impersonation;
use super::lookup::LookupError;
use super::metadata::{NODE, NODES, PROXY_FROM, drop_claims};
use super::node_ref::Other;
use instar_base::quota::{Quota, Rank};

/// Timeout for a connection to a node.
const CONNECT: Duration = Duration::from_secs(10);
/// Keepalive: a node that was silent for this long is sent a ping; without an answer within [`SIGN_OF_LIFE`] it counts as away.
const SILENCE: Duration = Duration::from_secs(20);
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Limit on calls to other nodes at a time, of all callers: each is a connection. A caller who asks for 64 nodes in each of a hundred calls
/// must not use up the descriptors that incoming connections need. A quarter is for administrators.
pub(super) const CALLS: usize = 256;

/// The places for calls to other nodes; clones share them.
#[derive(Clone)]
pub(super) struct Calls(Quota);

impl Default for Calls {
    fn default() -> Self {
        Calls(Quota::new(CALLS, CALLS - CALLS / 4))
    }
}

/// Why another node did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// All places are taken.
    #[error("this node passes on {CALLS} calls at a time; try again when some have ended")]
    TooMany,
    /// This node has no certificate for calls to other nodes.
    #[error("{NO_FORWARDING}")]
    MayNot,
    /// The node has no address.
    #[error(transparent)]
    Unknown(#[from] LookupError),
    /// The address is this node's own, but its certificate is not valid for the name.
    #[error(
        "{0} leads to this node, whose certificate is not for that name: add the name to machine.certSANs, or use the node's address"
    )]
    NotThisNode(Other),
    /// The node was not reached.
    #[error(transparent)]
    Away(#[from] anyhow::Error),
}

impl CallError {
    /// The gRPC status code of the error.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::TooMany => Code::ResourceExhausted,
            Self::MayNot => Code::PermissionDenied,
            Self::Unknown(_) | Self::NotThisNode(_) | Self::Away(_) => Code::Unavailable,
        }
    }
}

/// Checks the certificates of other nodes, and shows this node's own to them.
pub(super) struct Peers {
    tls: TlsConnector,
}

impl Peers {
    /// Made from the accepted authorities, the DER of a certificate and its PKCS#8 key.
    pub(super) fn new(
        authorities: RootCertStore,
        certificate: Vec<u8>,
        key: Vec<u8>,
    ) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_root_certificates(authorities)
            .with_client_auth_cert(
                vec![CertificateDer::from(certificate)],
                PrivatePkcs8KeyDer::from(key).into(),
            )
            .context("take the certificate for calls to other nodes")?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    /// Passes a call to another node, at one of these addresses, for a caller with these roles.
    pub(super) async fn call(
        &self,
        node: &Other,
        addresses: &[IpAddr],
        request: Request<RequestBody>,
        roles: &[Role],
        calls: &Calls,
    ) -> Result<Response<Incoming>, CallError> {
        let place = calls.0.try_acquire(Rank::of(may_all(roles)));
        let place = place.ok_or(CallError::TooMany)?;
        let request = addressed_to(node, request, roles)?;
        let connecting = tokio::time::timeout(CONNECT, self.connect(node, addresses));
        let stream = connecting
            .await
            .context("no answer")
            .flatten()
            .with_context(|| Unreached::NoConnection.of(node))?;
        // One connection per call: it ends with the answer, and nothing is left over when the other node reboots.
        let (mut sender, connection) =
            hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(SILENCE)
                .keep_alive_timeout(SIGN_OF_LIFE)
                .handshake(TokioIo::new(stream))
                .await
                .with_context(|| Unreached::NoHttp2.of(node))?;
        instar_base::task::spawn(async move {
            // The call itself reports how the connection ended.
            let _ = connection.await;
            drop(place);
        });
        let response = sender.send_request(request).await;
        Ok(response.with_context(|| Unreached::NoAnswer.of(node))?)
    }

    async fn connect(
        &self,
        node: &Other,
        addresses: &[IpAddr],
    ) -> anyhow::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let ends: Vec<_> = addresses
            .iter()
            .map(|address| SocketAddr::new(*address, instar_api::PORT))
            .collect();
        let stream = first_that_answers(&ends).await.context("TCP")?;
        stream.set_nodelay(true)?;
        // The certificate is checked against the caller's name for the node, not the address: an address that DNS gave proves nothing.
        let connected = self.tls.connect(node.server_name(), stream).await;
        connected.map_err(explained).context("TLS")
    }
}

/// Connects to the first of these addresses that accepts; each has its share of the timeout.
async fn first_that_answers(ends: &[SocketAddr]) -> anyhow::Result<TcpStream> {
    let share = CONNECT / u32::try_from(ends.len()).unwrap_or(u32::MAX).max(1);
    let mut last = anyhow!("it has no address");
    for end in ends {
        let connecting = tokio::time::timeout(share, TcpStream::connect(end));
        let connected = connecting.await.context("no answer");
        match connected.and_then(|connected| Ok(connected?)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error.context(end.ip()),
        }
    }
    Err(last)
}

/// Adds advice to the error of a certificate that is valid, but for another name.
fn explained(error: std::io::Error) -> anyhow::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let is_called_otherwise = matches!(
        cause,
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        ))
    );
    let error = anyhow::Error::new(error);
    match is_called_otherwise {
        true => error.context(
            "add the name to machine.certSANs of that node, or use one of those that it has",
        ),
        false => error,
    }
}

/// The same call as the other node is to see it.
fn addressed_to<B>(
    node: &Other,
    request: Request<B>,
    roles: &[Role],
) -> anyhow::Result<Request<B>> {
    let (mut parts, body) = request.into_parts();
    let from = match parts.uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str())?,
        None => HeaderValue::from_static("apid"),
    };
    parts.uri = at(&parts.uri, "https", &node.authority())?;
    pass_on(&mut parts.headers, from, roles);
    Ok(Request::from_parts(parts, body))
}

fn pass_on(metadata: &mut HeaderMap, from: HeaderValue, roles: &[Role]) {
    metadata.remove(NODE);
    metadata.remove(NODES);
    drop_claims(metadata);
    metadata.insert(PROXY_FROM, from);
    impersonation::act_as(metadata, roles);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::{Either, Full};
    use hyper::body::Bytes;

    use super::*;
    use crate::revocable::Revocation;

    #[test]
    fn a_call_that_is_passed_on_goes_no_further_and_claims_nothing() {
        let request = Request::post("https://10.0.0.1:50000/machine.MachineService/Version")
            .header("node", "fd00::2")
            .header("nodes", "10.0.0.3")
            .header("talos-role", "os:admin")
            .header("instar-roles", "os:admin")
            .header("instar-peer", "10.0.0.1:1")
            .header("grpc-timeout", "1S")
            .body(())
            .unwrap();
        let node = Other::parse("fd00::2").unwrap();
        let passed = addressed_to(&node, request, &[Role::Reader]).unwrap();
        assert_eq!(
            passed.uri(),
            "https://[fd00::2]:50000/machine.MachineService/Version"
        );
        let mut metadata: Vec<(&str, &str)> = passed
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        metadata.sort_unstable();
        assert_eq!(
            metadata,
            [
                ("grpc-timeout", "1S"),
                ("proxyfrom", "10.0.0.1:50000"),
                ("talos-role", "os:reader")
            ]
        );
    }

    #[tokio::test]
    async fn addresses_are_tried_until_one_answers() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        let closed = SocketAddr::new("127.0.0.2".parse().unwrap(), there.port());
        let stream = first_that_answers(&[closed, there]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there);
        let error = first_that_answers(&[closed]).await.unwrap_err();
        assert!(format!("{error:#}").contains("127.0.0.2"), "{error:#}");
        assert!(first_that_answers(&[]).await.is_err());
    }

    #[tokio::test]
    async fn clients_know_the_words_about_a_node_that_is_away() {
        let node = Other::parse("fd00::2").unwrap();
        let credentials = crate::identity::tests::credentials(&["node"], true);
        let body = Revocation::default().guard(Full::new(Bytes::new()));
        let request = Request::post("https://10.0.0.1:50000/machine.MachineService/Version");
        let request = request.body(Either::Right(body)).unwrap();
        let (peers, calls) = (credentials.peers().unwrap(), Calls::default());
        let called = peers.call(&node, &[], request, &[Role::Reader], &calls);
        let error = called.await.unwrap_err();
        assert_eq!(error.code() as u16, Code::Unavailable as u16);
        let said = instar_base::error_chain::chain(&error);
        assert!(instar_api::answers::is_away(&said), "{said}");
        // Neither is about the other node.
        for error in [CallError::NotThisNode(node), CallError::MayNot] {
            let said = instar_base::error_chain::chain(&error);
            assert!(!instar_api::answers::is_away(&said), "{said}");
        }
    }

    #[test]
    fn a_certificate_for_other_names_is_told_from_a_bad_one() {
        let told = |error: CertificateError| {
            let error = rustls::Error::InvalidCertificate(error);
            format!("{:#}", explained(std::io::Error::other(error)))
        };
        assert!(told(CertificateError::NotValidForName).contains("certSANs"));
        assert!(!told(CertificateError::Expired).contains("certSANs"));
    }
}
