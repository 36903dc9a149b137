//! machined's end of the socket to init, in its simplest form: ask, and wait for the answer.

use anyhow::{Context, Result, bail};
use instar_init_protocol::{MAX_KEPT, MAX_PACKET, Reply, SOCKET_FD};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The socket.
pub(crate) struct Link(OwnedFd);

impl Link {
    /// Takes descriptor 3, through /proc because taking a raw number needs unsafe code.
    pub(crate) fn take() -> Result<Self> {
        Ok(Self(pidfd_getfd(SOCKET_FD)?))
    }

    /// Sends any bytes.
    pub(crate) fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(
            &self.0,
            &[IoSlice::new(packet)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .context("send to init")?;
        Ok(())
    }

    /// Sends any bytes and waits for the answer.
    pub(crate) fn ask_raw(
        &self,
        packet: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        self.send(packet, descriptors)?;
        self.receive()
    }

    /// Closes the connection for both sides.
    pub(crate) fn shut(&self) -> Result<()> {
        shutdown(&self.0, Shutdown::Both).context("shut the link to init down")
    }

    /// Waits for any message.
    pub(crate) fn receive(&self) -> Result<(Reply, Vec<OwnedFd>)> {
        let mut packet = [0; MAX_PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_KEPT))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .context("receive from init")?;
        if message.bytes == 0 {
            bail!("init has closed the link");
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let bytes = packet.get(..message.bytes).unwrap_or_default();
        Ok((Reply::parse(bytes).context("understand init")?, descriptors))
    }
}

/// A descriptor of this very process, by its number.
fn pidfd_getfd(number: i32) -> Result<OwnedFd> {
    let myself = rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    )?;
    let flags = rustix::process::PidfdGetfdFlags::empty();
    rustix::process::pidfd_getfd(myself.as_fd(), number, flags).context("take the socket to init")
}
