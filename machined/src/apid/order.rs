//! What machined tells apid, on a stream: four bytes of length, big endian, and JSON.

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::Identity;

/// An identity is a few certificates; more is a mistake.
const LARGEST: u32 = 1 << 20;

/// One order.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// To be this node from now on. The first order is one of these.
    Identity(Identity),
    /// To let go of the code that only its start needed.
    ForgetStart,
}

/// Sends an order.
pub async fn send(stream: &mut (impl AsyncWrite + Unpin), order: &Order) -> anyhow::Result<()> {
    let json = serde_json::to_vec(order)?;
    stream.write_u32(u32::try_from(json.len())?).await?;
    stream.write_all(&json).await?;
    Ok(())
}

/// Receives the next order; none at the end of the stream.
pub(super) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
) -> anyhow::Result<Option<Order>> {
    let length = match stream.read_u32().await {
        Ok(length) if length <= LARGEST => length,
        Ok(length) => bail!("an order of {length} bytes is too large"),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error).context("read the stream of orders"),
    };
    let mut json = vec![0; length as usize];
    stream
        .read_exact(&mut json)
        .await
        .context("read an order")?;
    Ok(Some(
        serde_json::from_slice(&json).context("parse an order")?,
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
        for order in [Order::Identity(identity), Order::ForgetStart] {
            send(&mut stream, &order).await.unwrap();
        }
        let mut stream = stream.as_slice();
        let first = receive(&mut stream).await.unwrap();
        assert!(matches!(first, Some(Order::Identity(identity)) if identity.names == ["node"]));
        let second = receive(&mut stream).await.unwrap();
        assert!(matches!(second, Some(Order::ForgetStart)));
        assert!(receive(&mut stream).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_is_too_large_or_cut_off_is_an_error() {
        assert!(receive(&mut [0x7f, 0, 0, 0].as_slice()).await.is_err());
        assert!(receive(&mut [0, 0, 0, 9, b'"'].as_slice()).await.is_err());
    }
}
