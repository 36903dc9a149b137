//! The messages between machined and apid on their stream: orders to apid, and questions to machined on the other half. Each is four bytes
//! of length, big endian, and JSON.

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::Identity;

/// Size limit of a message, in bytes. An identity is a few certificates; more is a mistake.
const LARGEST: u32 = 1 << 20;

/// An order from machined to apid.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlMessage {
    /// Be this node from now on. The first order is one of these.
    Identity(Identity),
    /// Release the code that only the start needed.
    ForgetStart,
    /// Take this answer to a question.
    TakeAddresses(Answer),
    /// Drain: finish the calls in flight and exit. Another apid takes over.
    Drain,
}

/// A question to machined.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// The number that the answer repeats.
    pub number: u64,
    /// A host name.
    pub name: String,
}

/// machined's answer to a question.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the question.
    pub number: u64,
    /// Addresses in the order in which they are to be tried, or the reason why there are none.
    pub found: Found,
}

/// Addresses, or the reason why there are none.
pub type Found = Result<Vec<IpAddr>, String>;

/// Sends an order, or a question.
pub async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> anyhow::Result<()> {
    let json = serde_json::to_vec(message)?;
    stream.write_u32(u32::try_from(json.len())?).await?;
    stream.write_all(&json).await?;
    Ok(())
}

/// Receives the next order or question; `None` at the end of the stream.
pub async fn receive<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> anyhow::Result<Option<T>> {
    let length = match stream.read_u32().await {
        Ok(length) if length <= LARGEST => length,
        Ok(length) => bail!("a message of {length} bytes is too large"),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error).context("read the stream of orders"),
    };
    let mut json = vec![0; length as usize];
    stream
        .read_exact(&mut json)
        .await
        .context("read a message")?;
    Ok(Some(
        serde_json::from_slice(&json).context("parse a message")?,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn orders_arrive_one_after_the_other() {
        let identity = Identity::new(
            super::super::Mode::Maintenance,
            b"certificate",
            b"key",
            &[],
            vec!["node".to_owned()],
        );
        let mut stream = Vec::new();
        for order in [
            ControlMessage::Identity(identity),
            ControlMessage::ForgetStart,
        ] {
            send(&mut stream, &order).await.unwrap();
        }
        let mut stream = stream.as_slice();
        let first = receive(&mut stream).await.unwrap();
        assert!(
            matches!(first, Some(ControlMessage::Identity(identity)) if identity.names == ["node"])
        );
        let second = receive(&mut stream).await.unwrap();
        assert!(matches!(second, Some(ControlMessage::ForgetStart)));
        let end: Option<ControlMessage> = receive(&mut stream).await.unwrap();
        assert!(end.is_none());
    }

    #[tokio::test]
    async fn what_is_too_large_or_cut_off_is_an_error() {
        for bytes in [&[0x7f, 0, 0, 0][..], &[0, 0, 0, 9, b'"']] {
            let received: anyhow::Result<Option<ControlMessage>> = receive(&mut &*bytes).await;
            assert!(received.is_err(), "{bytes:?}");
        }
    }
}
