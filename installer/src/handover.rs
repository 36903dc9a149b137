//! The hand-over to machined: one packet with a description, and the sealed memory beside it.

use std::{
    fs::File,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg, sockopt,
};
use serde::Serialize;

use crate::{error::Error, release::Release, sys};

#[derive(Serialize)]
struct Packet<'a> {
    rootfs: Rootfs<'a>,
    /// The order of the new boot entry, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_entry: Option<u32>,
    /// Whether machined of the new version takes the listening sockets that the one before leaves.
    takes_sockets: bool,
}

#[derive(Serialize)]
struct Rootfs<'a> {
    blake3: &'a str,
    bytes: u64,
    version: &'a str,
}

/// The socket that machined passed.
pub(crate) fn socket() -> Result<OwnedFd, Error> {
    let socket = sys::inherited_socket().map_err(|error| Error::NoSocket(Some(error)))?;
    match sockopt::socket_type(&socket) {
        Ok(SocketType::SEQPACKET) => Ok(socket),
        Ok(_) => Err(Error::NoSocket(None)),
        Err(error) => Err(Error::NoSocket(Some(error.into()))),
    }
}

/// Sends the packet. On return it is in the queue of machined's end of the socket.
pub(crate) fn send(
    socket: &OwnedFd,
    release: &Release,
    boot_entry: Option<u32>,
    sealed: &File,
) -> Result<(), Error> {
    let expected = &release.rootfs;
    let packet = Packet {
        rootfs: Rootfs {
            blake3: &expected.blake3,
            bytes: expected.bytes,
            version: &release.version,
        },
        boot_entry,
        takes_sockets: true,
    };
    let text = serde_json::to_vec(&packet).map_err(|error| Error::Send(error.into()))?;

    let descriptors = [sealed.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Error::Send(io::Error::other("no room for a descriptor")));
    }
    // NOSIGNAL: if machined is gone, that is an error to report, and not a fatal signal.
    let sent = sendmsg(
        socket,
        &[IoSlice::new(&text)],
        &mut beside,
        SendFlags::NOSIGNAL,
    );
    match sent.map_err(|error| Error::Send(error.into()))? {
        whole if whole == text.len() => Ok(()),
        part => Err(Error::Send(io::Error::other(format!(
            "only {part} of {} bytes were taken",
            text.len()
        )))),
    }
}
