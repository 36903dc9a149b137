//! The hello of a client of TLS 1.1, byte by byte: no library supports that version any more.

use std::io;

use anyhow::{Context as _, Result, bail};
use instar_tests::Node;
use rustls::AlertDescription;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::PATIENCE;

/// Returns the hello of a client that knows nothing later than TLS 1.1 (RFC 4346, 7.4.1.2), with or without the
/// signature algorithms that a later version requires.
pub(super) fn hello_of_tls11(signature_algorithms: bool) -> Vec<u8> {
    // ECDHE with ECDSA and with RSA, both with AES-128-CBC.
    let suites = [0, 4, 0xc0, 0x09, 0xc0, 0x13];
    let (version, random) = ([3, 2], [0x5a; 32]);
    let (no_session, no_compression) = ([0], [1, 0]);
    let mut body = [&version[..], &random, &no_session, &suites].concat();
    body.extend(no_compression);
    let extensions = extensions_of_tls11(signature_algorithms);
    body.extend(length(extensions.len()));
    body.extend(extensions);
    let message = [&[1, 0][..], &length(body.len()), &body].concat();
    [&[0x16, 3, 1][..], &length(message.len()), &message].concat()
}

fn extensions_of_tls11(signature_algorithms: bool) -> Vec<u8> {
    let groups = [0, 0x0a, 0, 6, 0, 4, 0, 0x1d, 0, 0x17];
    let point_formats = [0, 0x0b, 0, 2, 1, 0];
    // ECDSA and RSA with SHA-256.
    let signatures = [0, 0x0d, 0, 6, 0, 4, 4, 3, 4, 1];
    let mut extensions = [&groups[..], &point_formats].concat();
    if signature_algorithms {
        extensions.extend(signatures);
    }
    extensions
}

fn length(of: usize) -> [u8; 2] {
    u16::try_from(of).unwrap().to_be_bytes()
}

/// Returns the alert with which the node refuses these bytes, its only answer.
pub(super) async fn alert_to(node: &Node, bytes: &[u8]) -> Result<AlertDescription> {
    let mut stream = TcpStream::connect(node.endpoint()?).await?;
    stream.write_all(bytes).await?;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    let _: io::Result<_> = read.context("the connection stays open")?;
    // A record of two bytes: fatal, and the reason.
    match answer[..] {
        [0x15, 3, _, 0, 2, 2, why] => Ok(AlertDescription::from(why)),
        _ => bail!("no alert but {answer:?}"),
    }
}
