//! An init for tests: a thread that plays it, at the other end of a link.

#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;

use instar_init_protocol::{Line, RecvFlags, Reply, Request, SendFlags, Welcome, receive, send};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{Handshake, InitLink};

const ID: &str = "2f6b1c3a-0d4e-4f5a-8b6c-7d8e9fa0b1c2";

/// init's end of the socket. A link whose other end is gone ends the process.
pub(crate) struct Init(OwnedFd);

impl Init {
    /// Sends a reply, or a report.
    pub(crate) fn say(&self, reply: &Reply) {
        send(&self.0, &reply.encode(), &[], SendFlags::empty()).unwrap();
    }

    /// Answers requests, with the descriptors that come with them, until the link is gone.
    pub(crate) fn answer(&self, mut reply: impl FnMut(Request, Vec<OwnedFd>) -> Reply) {
        while let Ok((packet, descriptors)) = receive(&self.0, RecvFlags::empty()) {
            let Ok(request) = Request::parse(&packet) else {
                return;
            };
            self.say(&reply(request, descriptors));
        }
    }
}

/// The reply that agrees to a request.
pub(crate) fn agreement(request: &Request) -> Reply {
    Reply::Ok {
        to: Line::lossy(request.verb()),
    }
}

/// Returns a link to an init that has welcomed machined and goes on with this, in a thread of its own.
pub(crate) async fn link_to(then: impl FnOnce(&Init) + Send + 'static) -> (InitLink, Handshake) {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    std::thread::spawn(move || {
        let init = Init(theirs);
        receive(&init.0, RecvFlags::empty()).unwrap();
        init.say(&Reply::Welcome(Welcome {
            generation: 1,
            deadline: 300,
            ..Welcome::of_kernel(ID.parse().unwrap())
        }));
        then(&init);
    });
    InitLink::connect(ours).await.unwrap()
}
