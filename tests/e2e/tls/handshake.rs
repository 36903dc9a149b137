//! A handshake: its negotiated parameters, or the refusal of the client.

use std::{fmt, io};

use anyhow::{Context as _, Result, bail, ensure};
use instar_api::machine::VersionResponse;
use instar_tests::{Calls, End, Node, TlsClient};
use prost::Message as _;
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::PATIENCE;

/// The negotiated parameters.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) version: ProtocolVersion,
    pub(super) suite: CipherSuite,
    pub(super) group: NamedGroup,
    pub(super) protocol: Option<String>,
    pub(super) handshake: HandshakeKind,
    /// The node's certificate.
    pub(super) leaf: CertificateDer<'static>,
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, suite, group) = (self.version, self.suite, self.group);
        write!(f, "{version:?} {suite:?} {group:?} ")?;
        write!(f, "{:?} {:?}", self.protocol, self.handshake)
    }
}

impl Agreed {
    fn on(stream: &TlsStream<TcpStream>) -> Option<Self> {
        let (_, agreed) = stream.get_ref();
        let protocol = agreed.alpn_protocol();
        Some(Self {
            version: agreed.protocol_version()?,
            suite: agreed.negotiated_cipher_suite()?.suite(),
            group: agreed.negotiated_key_exchange_group()?.name(),
            protocol: protocol.map(|name| String::from_utf8_lossy(name).into_owned()),
            handshake: agreed.handshake_kind()?,
            leaf: agreed.peer_certificates()?.first()?.clone().into_owned(),
        })
    }
}

/// The client is accepted and answered.
pub(super) async fn works(node: &Node, what: &str, client: &TlsClient) -> Result<Agreed> {
    let stream = client.connect(&node.endpoint()?).await;
    answers(what, stream.with_context(|| what.to_owned())?).await
}

/// The other end of the connection is the node, and answers a call.
pub(super) async fn answers(what: &str, stream: TlsStream<TcpStream>) -> Result<Agreed> {
    let agreed = Agreed::on(&stream).context("nothing was agreed on")?;
    println!("{what}: {agreed}");
    let version = "/machine.MachineService/Version".to_owned();
    let calls = Calls::of(stream, &[version], &[]).await?;
    let Some(Ok(answer)) = calls.answers.first() else {
        bail!("{what}: {calls:?}");
    };
    let message = answer.body.get(5..).context("no message")?;
    let version = VersionResponse::decode(message)?;
    let version = version.messages[0].version.as_ref();
    let is_node = version.is_some_and(|version| version.tag == "v0.1.0");
    ensure!(is_node, "{what}: {version:?}");
    Ok(agreed)
}

/// The client is refused before a byte inside TLS; it sends none itself.
pub(super) async fn refused(node: &Node, what: &str, client: &TlsClient) -> Result<End> {
    let ended = match client.connect(&node.endpoint()?).await {
        Err(error) => Err(error),
        Ok(stream) => hears_nothing(what, stream).await?,
    };
    let end = match ended {
        Ok(()) => End::Leave,
        Err(error) => End::of(&error).with_context(|| format!("{what}: {error}"))?,
    };
    println!("{what}: {end}");
    Ok(end)
}

/// Checks that nothing arrives; returns the stream's end.
async fn hears_nothing(what: &str, mut stream: TlsStream<TcpStream>) -> Result<io::Result<()>> {
    let mut said = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    let read = read.with_context(|| format!("{what} stays"))?;
    ensure!(said.is_empty(), "{what} is told {said:?}");
    Ok(read.map(drop))
}
