//! Sends and receives packets with descriptors on the socket between init and machined.

use crate::{MAX_KEPT, MAX_PACKET};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends a packet with at most [`MAX_KEPT`] descriptors. Waits while the socket is full, unless it is a non-blocking one.
pub fn send(
    socket: impl AsFd,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_KEPT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags)?;
    Ok(())
}

/// Receives a packet and the descriptors that came with it. An empty one is the end: the other side has closed the socket.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One byte more than allowed, so that a packet that is too long shows.
    let mut packet = vec![0; MAX_PACKET + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_KEPT))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut buffers = [IoSliceMut::new(&mut packet)];
    let length = recvmsg(socket, &mut buffers, &mut control, flags)?.bytes;
    packet.truncate(length);
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((packet, rights.flatten().collect()))
}
