//! init's end of the socket to machined. Nothing here blocks: a machined that does not read loses messages.

use crate::console::complain;
use crate::failure::{Failure, Result, Step};
use instar_init_protocol::{ErrorCode, Line, MAX_KEPT, MAX_PACKET, ParseError, Reply, Request};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How many exits wait for a machined that has not said hello.
const BACKLOG: usize = 256;

/// The socket to one machined.
pub(crate) struct Link {
    socket: OwnedFd,
    greeted: bool,
    closed: bool,
    backlog: Vec<Reply>,
}

/// What came in.
pub(crate) enum Received {
    /// A packet with its descriptors.
    Packet(Result<Request, ParseError>, Vec<OwnedFd>),
    /// Nothing more for now.
    Nothing,
    /// machined has closed its end.
    Closed,
}

impl Link {
    /// A new link and machined's end of it.
    pub(crate) fn new() -> Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .step("make the socket to machined")?;
        Ok((
            Self {
                socket: ours,
                greeted: false,
                closed: false,
                backlog: Vec::new(),
            },
            theirs,
        ))
    }

    /// Readable when something came in; nothing to wait for once machined has closed its end.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.closed).then(|| self.socket.as_fd())
    }

    /// Takes one packet.
    pub(crate) fn receive(&mut self) -> Received {
        // One byte and one descriptor more than allowed, so that too much can be told from enough.
        let mut packet = [0; MAX_PACKET + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let length = match recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            flags,
        ) {
            Ok(message) if message.bytes > 0 => message.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Received::Nothing,
            Ok(_) | Err(_) => {
                self.closed = true;
                return Received::Closed;
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Received::Packet(
            Request::parse(packet.get(..length).unwrap_or_default()),
            descriptors,
        )
    }

    /// Welcomes machined, and tells it the exits that waited for that.
    pub(crate) fn welcome(&mut self, welcome: &Reply, kept: &[BorrowedFd<'_>]) {
        self.send(welcome, kept);
        self.greeted = true;
        for exit in std::mem::take(&mut self.backlog) {
            self.send(&exit, &[]);
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&self, to: &str, result: &Result<()>) {
        let to = Line::lossy(to);
        self.send(
            &match result {
                Ok(()) => Reply::Ok { to },
                Err(Failure { code, text }) => Reply::Error {
                    to,
                    code: code.clone(),
                    text: Line::lossy(text),
                },
            },
            &[],
        );
    }

    /// Refuses a packet that is not a request.
    pub(crate) fn refuse(&self, error: &ParseError) {
        let verb = error.verb.as_ref().map_or("-", Line::as_str);
        self.answer(verb, &Err(Failure::new(error.code(), error)));
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_KEPT))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(error) = sendmsg(
            &self.socket,
            &[IoSlice::new(&reply.encode())],
            &mut control,
            flags,
        ) {
            complain!("machined does not take a message: {error}");
        }
    }
}

/// Takes the descriptor that goes with a request.
pub(crate) fn only(descriptors: Vec<OwnedFd>) -> Result<OwnedFd> {
    let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|descriptors| {
        let text = format_args!(
            "{} descriptors came with the message instead of 1",
            descriptors.len()
        );
        Failure::new(ErrorCode::Descriptors, text)
    })?;
    Ok(descriptor)
}
