//! init's end of the socket to machined. No call blocks: a machined that does not read loses messages.

use crate::console::complain;
use crate::failure::{Failure, Result, Step, fail};
use instar_init_protocol::{Line, ParseError, RecvFlags, Reply, Request, SendFlags, receive, send};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitStatus};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Limit on the exits that wait for a machined that has not said hello.
const BACKLOG: usize = 256;

pub(crate) struct Link {
    socket: OwnedFd,
    /// The exits that wait for machined to say hello.
    backlog: Option<Vec<Reply>>,
    /// Whether machined has closed its end.
    pub(crate) closed: bool,
}

impl Link {
    /// Makes a link; returns it and machined's end.
    pub(crate) fn new() -> Result<(Self, OwnedFd)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .step("make the socket to machined")?;
        let link = Self {
            socket,
            backlog: Some(Vec::new()),
            closed: false,
        };
        Ok((link, theirs))
    }

    /// The socket, to wait for packets; `None` once machined has closed its end.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.closed).then(|| self.socket.as_fd())
    }

    /// Takes one packet with its descriptors, if one is there.
    pub(crate) fn receive(&mut self) -> Option<(Result<Request, ParseError>, Vec<OwnedFd>)> {
        match receive(&self.socket, RecvFlags::DONTWAIT) {
            Ok((packet, fds)) if !packet.is_empty() => return Some((Request::parse(&packet), fds)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.closed = true,
        }
        None
    }

    /// Welcomes machined, and sends the exits that waited for that.
    pub(crate) fn welcome(&mut self, welcome: Reply, kept: &[BorrowedFd<'_>]) {
        self.send(&welcome, kept);
        for exit in self.backlog.take().into_iter().flatten() {
            self.send(&exit, &[]);
        }
    }

    pub(crate) fn answer(&self, to: Line, result: Result<()>) {
        let answer = match result {
            Ok(()) => Reply::Ok { to },
            Err(Failure { code, text }) => Reply::Error {
                to,
                code: Line::lossy(code.as_str()),
                text: Line::lossy(&text),
            },
        };
        self.send(&answer, &[]);
    }

    /// Reports that an orphan has ended.
    pub(crate) fn exited(&mut self, pid: Pid, status: WaitStatus) {
        let (pid, status) = (pid.as_raw_pid(), status.as_raw());
        let exit = Reply::Exited { pid, status };
        match &mut self.backlog {
            None => self.send(&exit, &[]),
            Some(backlog) if backlog.len() < BACKLOG => backlog.push(exit),
            Some(_) => {}
        }
    }

    fn send(&self, reply: &Reply, descriptors: &[BorrowedFd<'_>]) {
        let packet = reply.encode();
        if let Err(error) = send(&self.socket, &packet, descriptors, SendFlags::DONTWAIT) {
            complain!("machined does not take a message: {error}");
        }
    }
}

/// The descriptor of a request that needs exactly one.
pub(crate) fn only(descriptors: Vec<OwnedFd>) -> Result<OwnedFd> {
    match <[OwnedFd; 1]>::try_from(descriptors) {
        Ok([one]) => Ok(one),
        Err(all) => fail!(Descriptors: "{} descriptors came with the message, not 1", all.len()),
    }
}
