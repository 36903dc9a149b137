//! init's end of the socket to machined. Nothing here blocks: a machined that does not read loses messages.

use crate::console::complain;
use crate::failure::{Failure, Result, Step, fail};
use instar_init_protocol::{
    ErrorCode, Line, ParseError, RecvFlags, Reply, Request, SendFlags, receive, send,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How many exits wait for a machined that has not said hello.
const BACKLOG: usize = 256;

/// The socket to one machined.
pub(crate) struct Link {
    socket: OwnedFd,
    greeted: bool,
    backlog: Vec<Reply>,
    /// machined has closed its end.
    pub(crate) closed: bool,
}

impl Link {
    /// A new link and machined's end of it.
    pub(crate) fn new() -> Result<(Self, OwnedFd)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .step("make the socket to machined")?;
        let link = Self {
            socket,
            greeted: false,
            backlog: Vec::new(),
            closed: false,
        };
        Ok((link, theirs))
    }

    /// Readable when something came in; nothing to wait for once machined has closed its end.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.closed).then(|| self.socket.as_fd())
    }

    /// Takes one packet with its descriptors, if one is there.
    pub(crate) fn receive(&mut self) -> Option<(Result<Request, ParseError>, Vec<OwnedFd>)> {
        match receive(&self.socket, RecvFlags::DONTWAIT) {
            Ok((packet, descriptors)) if !packet.is_empty() => {
                return Some((Request::parse(&packet), descriptors));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.closed = true,
        }
        None
    }

    /// Welcomes machined, and tells it the exits that waited for that.
    pub(crate) fn welcome(&mut self, welcome: Reply, kept: &[BorrowedFd<'_>]) {
        self.send(&welcome, kept);
        self.greeted = true;
        for exit in std::mem::take(&mut self.backlog) {
            self.send(&exit, &[]);
        }
    }

    /// Answers a request.
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

    /// Tells that an orphan has ended.
    pub(crate) fn exited(&mut self, pid: i32, status: i32) {
        let exit = Reply::Exited { pid, status };
        if self.greeted {
            self.send(&exit, &[]);
        } else if self.backlog.len() < BACKLOG {
            self.backlog.push(exit);
        }
    }

    fn send(&self, reply: &Reply, descriptors: &[BorrowedFd<'_>]) {
        let packet = reply.encode();
        if let Err(error) = send(&self.socket, &packet, descriptors, SendFlags::DONTWAIT) {
            complain!("machined does not take a message: {error}");
        }
    }
}

/// Takes the descriptor that goes with a request.
pub(crate) fn only(descriptors: Vec<OwnedFd>) -> Result<OwnedFd> {
    <[OwnedFd; 1]>::try_from(descriptors)
        .map(|[descriptor]| descriptor)
        .or_else(|all| {
            let text = format_args!(
                "{} descriptors came with the message instead of 1",
                all.len()
            );
            fail(ErrorCode::Descriptors, text)
        })
}
