//! The messages between machined and apid on their stream: orders to apid, and questions to machined on the other half. Each is four bytes
//! of length, big endian, and JSON.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::{Context as _, bail};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

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
    /// Serve pods on a listening unix socket, which follows by itself ([`send_socket`]); no longer on the previous one.
    ServePods,
    /// Sign certificates for workers on a listening TCP socket, which follows by itself ([`send_socket`]).
    ServeWorkers,
    /// Close that socket.
    StopServingWorkers,
    /// Serve metrics on a listening TCP socket, which follows by itself ([`send_socket`]).
    ServeMetrics {
        /// Whether clients need a certificate; otherwise there is no TLS.
        with_tls: bool,
    },
    /// Close that socket.
    StopServingMetrics,
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

/// Sends a socket, after the order that announces it.
pub async fn send_socket(stream: &UnixStream, socket: BorrowedFd<'_>) -> io::Result<()> {
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket];
        beside.push(SendAncillaryMessage::ScmRights(&sockets));
        let one = [IoSlice::new(&[0])];
        Ok(sendmsg(stream, &one, &mut beside, SendFlags::NOSIGNAL)?)
    };
    stream.async_io(Interest::WRITABLE, send).await.map(drop)
}

/// Receives a socket of [`send_socket`].
pub(super) async fn receive_socket(stream: &UnixStream) -> io::Result<OwnedFd> {
    let receive = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut one = [IoSliceMut::new(&mut byte)];
        recvmsg(stream, &mut one, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
        let rights = beside.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        rights.ok_or_else(|| io::Error::other("no socket came with the order"))
    };
    stream.async_io(Interest::READABLE, receive).await
}

/// Receives the next order or question; `None` at the end of the stream.
pub async fn receive<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> anyhow::Result<Option<T>> {
    let length = match stream.read_u32().await {
        Ok(length) if length <= LARGEST => length,
        Ok(length) => bail!("a message of {length} bytes is too large"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
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
    use std::os::fd::AsFd as _;

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
    async fn a_socket_comes_between_two_orders() {
        let (machined, apid) = UnixStream::pair().unwrap();
        let (mut orders, _questions) = apid.into_split();
        let (_answers, mut to_apid) = machined.into_split();
        let (sent, kept) = std::os::unix::net::UnixStream::pair().unwrap();
        send(&mut to_apid, &ControlMessage::ServePods)
            .await
            .unwrap();
        let given = send_socket(to_apid.as_ref(), sent.as_fd()).await;
        given.unwrap();
        send(&mut to_apid, &ControlMessage::Drain).await.unwrap();
        let first = receive(&mut orders).await.unwrap();
        assert!(matches!(first, Some(ControlMessage::ServePods)));
        let received = receive_socket(orders.as_ref()).await.unwrap();
        io::Write::write_all(&mut &kept, b"x").unwrap();
        let mut read = [0; 1];
        let received = std::os::unix::net::UnixStream::from(received);
        io::Read::read_exact(&mut &received, &mut read).unwrap();
        assert_eq!(&read, b"x");
        let next = receive(&mut orders).await.unwrap();
        assert!(matches!(next, Some(ControlMessage::Drain)));
    }

    #[tokio::test]
    async fn what_is_too_large_or_cut_off_is_an_error() {
        for bytes in [&[0x7f, 0, 0, 0][..], &[0, 0, 0, 9, b'"']] {
            let received: anyhow::Result<Option<ControlMessage>> = receive(&mut &*bytes).await;
            assert!(received.is_err(), "{bytes:?}");
        }
    }
}
