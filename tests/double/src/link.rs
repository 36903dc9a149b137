//! machined's end of the socket to init, in its simplest form: asks, and waits for the answer.

use anyhow::{Context, Result, bail};
use instar_init_protocol::{RecvFlags, Reply, SOCKET_FD, SendFlags, receive, send};
use rustix::net::{Shutdown, shutdown};
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
        send(&self.0, packet, descriptors, SendFlags::empty()).context("send to init")
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
        let (packet, descriptors) =
            receive(&self.0, RecvFlags::empty()).context("receive from init")?;
        if packet.is_empty() {
            bail!("init has closed the link");
        }
        let reply = Reply::parse(&packet).context("understand init")?;
        Ok((reply, descriptors))
    }
}

/// Returns a descriptor of this process, by its number.
fn pidfd_getfd(number: i32) -> Result<OwnedFd> {
    let myself = rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    )?;
    let flags = rustix::process::PidfdGetfdFlags::empty();
    rustix::process::pidfd_getfd(myself.as_fd(), number, flags).context("take the socket to init")
}
