//! Packet sockets (packet(7)): packets of a link, below IP.

// Addresses, options and control messages of packet sockets have no safe interface.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime};

use libc::{c_int, c_ushort, socklen_t};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use socket2::{SockFilter, SockRef};

/// Size of the receive buffer, in bytes; the kernel doubles it for its own bookkeeping (socket(7)).
const WAITING_BYTES: usize = 1 << 20;
/// Size of the control buffer: a `timespec` and a `tpacket_auxdata` with their headers, of 32 and 40 bytes, in words that align both.
const CONTROL_WORDS: usize = 16;

/// Opens a socket that receives nothing before [`bind`]: with the protocol 0 it gets no packets, of other links neither.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW and CAP_NET_ADMIN.
pub fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    // Above the limit for ordinary users: packets come in bursts.
    sockopt::set_socket_recv_buffer_size_force(&socket, WAITING_BYTES)?;
    stamp_times(&socket)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    Ok(socket)
}

/// Requests the kernel's time of receipt for each packet (socket(7)).
fn stamp_times(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Attaches a filter: only packets that the program accepts pass, each cut to the length that it returns.
///
/// # Errors
/// `EINVAL` if the program is not valid, `ENOMEM` if it is larger than `net.core.optmem_max` allows.
pub fn filter(socket: &OwnedFd, program: &[SockFilter]) -> io::Result<()> {
    SockRef::from(socket).attach_filter(program)
}

/// Leaves out packets that this machine sends. On a loopback link each packet is sent and received, so without this it is captured twice.
pub fn ignore_outgoing(socket: &OwnedFd) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)
}

/// Makes the link receive packets for other machines too, as long as the socket is open.
pub fn be_promiscuous(socket: &OwnedFd, link: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index(link)?,
        mr_type: libc::PACKET_MR_PROMISC as c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the kernel reads one packet_mreq, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const membership).cast(),
            size_of_val(&membership) as socklen_t,
        )
    };
    result(done)
}

/// Receives every packet of this link from now on.
///
/// # Errors
/// `ENODEV` if there is no such link, `ENETDOWN` if it is down.
pub fn bind(socket: &OwnedFd, link: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as c_ushort,
        sll_protocol: (libc::ETH_P_ALL as c_ushort).to_be(),
        sll_ifindex: index(link)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads one sockaddr_ll, which outlives the call.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as socklen_t,
        )
    };
    result(done)?;
    // A link that is down is not an error of bind: the socket has the error.
    Ok(sockopt::socket_error(socket)??)
}

/// A packet that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Length of the part in the buffer, in bytes.
    pub length: usize,
    /// Length on the link in bytes, without the VLAN tag.
    pub original: usize,
    /// The kernel's time of receipt; the present time if there is none.
    pub at: SystemTime,
    /// The VLAN tag as it was on the link, if the card or the kernel removed one.
    pub tag: Option<[u8; 4]>,
}

/// Receives the next packet; the part that does not fit into the buffer is lost.
///
/// # Errors
/// `EAGAIN` if there is none, `ENETDOWN` once after the link went down or was removed.
pub fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: a msghdr is made of numbers and pointers, for which zeros are values: none of anything.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `message` names one part, the buffer, and the control buffer, each with its length; all outlive the call, and
    // no other code has them.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;

    let (mut stamp, mut extra) = (None, None);
    // SAFETY: recvmsg filled msg_control and shortened msg_controllen to what it wrote.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR answer null, or where in the control buffer, which is aligned for it, a whole
        // header is.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        match (level, kind) {
            // SAFETY: `header` is as above; the kernel's message of this kind is a timespec.
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => stamp = unsafe { content(header) },
            // SAFETY: `header` is as above; the kernel's message of this kind is a tpacket_auxdata.
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => extra = unsafe { content(header) },
            _ => {}
        }
        // SAFETY: both are as above.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(Received {
        length,
        original: extra.map_or(length, |extra: libc::tpacket_auxdata| extra.tp_len as usize),
        at: stamp.and_then(time).unwrap_or_else(SystemTime::now),
        tag: extra.as_ref().and_then(tag),
    })
}

/// The content of a control message; `None` if it was truncated.
///
/// # Safety
/// `header` is one of a control buffer that recvmsg(2) has filled, and any bytes that the kernel wrote there are a `T`.
unsafe fn content<T>(header: *const libc::cmsghdr) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: CMSG_LEN only calculates; the header may be read, and cmsg_len says how much of its content is there: it is
    // copied only if that is a whole T, which makes `value` one.
    unsafe {
        if (*header).cmsg_len < libc::CMSG_LEN(size_of::<T>() as u32) as _ {
            return None;
        }
        let bytes = libc::CMSG_DATA(header);
        std::ptr::copy_nonoverlapping(bytes, value.as_mut_ptr().cast(), size_of::<T>());
        Some(value.assume_init())
    }
}

fn time(stamp: libc::timespec) -> Option<SystemTime> {
    let seconds = u64::try_from(stamp.tv_sec).ok()?;
    let nanoseconds = u32::try_from(stamp.tv_nsec).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

/// Type and value of a tag that comes beside the packet.
fn tag(extra: &libc::tpacket_auxdata) -> Option<[u8; 4]> {
    if extra.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let kind = match extra.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => libc::ETH_P_8021Q as u16,
        _ => extra.tp_vlan_tpid,
    };
    let ([a, b], [c, d]) = (kind.to_be_bytes(), extra.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

/// The counters of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that the filter let through, including dropped ones.
    pub packets: u32,
    /// Packets among them that were dropped for lack of room.
    pub dropped: u32,
}

/// Reads the counts since the socket was opened, or since the last call.
pub fn counts(socket: &OwnedFd) -> io::Result<Counts> {
    let mut counts = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let mut length = size_of_val(&counts) as socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes of a tpacket_stats, and both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut counts).cast(),
            &raw mut length,
        )
    };
    result(done)?;
    Ok(Counts {
        packets: counts.tp_packets,
        dropped: counts.tp_drops,
    })
}

/// Sets an option with a number as its value.
fn set(socket: &OwnedFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one int, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as socklen_t,
        )
    };
    result(done)
}

fn index(link: u32) -> io::Result<c_int> {
    c_int::try_from(link).map_err(io::Error::other)
}

fn result(done: c_int) -> io::Result<()> {
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::UdpSocket;

    /// Packet sockets need privileges; times and truncation by the kernel are the same for other sockets.
    #[test]
    fn a_packet_comes_with_its_time_as_far_as_it_fits() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let receiver = OwnedFd::from(receiver);
        stamp_times(&receiver).unwrap();
        let before = SystemTime::now();
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .send_to(b"abcdef", to)
            .unwrap();

        let mut buffer = [0; 4];
        let received = receive(&receiver, &mut buffer).unwrap();
        assert_eq!((received.length, &buffer), (4, b"abcd"));
        assert_eq!(received.tag, None);
        // The kernel's clock for times of receipt may be coarse by a tick.
        let slack = Duration::from_millis(20);
        let now = SystemTime::now();
        assert!(
            (before - slack..=now + slack).contains(&received.at),
            "{before:?} {received:?} {now:?}"
        );

        let none = receive(&receiver, &mut buffer).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_tag_is_as_it_was_on_the_link() {
        let extra = |tp_status, tp_vlan_tpid| libc::tpacket_auxdata {
            tp_status,
            tp_len: 0,
            tp_snaplen: 0,
            tp_mac: 0,
            tp_net: 0,
            tp_vlan_tci: 0x2005,
            tp_vlan_tpid,
        };
        let (valid, typed) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        assert_eq!(tag(&extra(0, 0x88a8)), None);
        assert_eq!(tag(&extra(valid, 0)), Some([0x81, 0, 0x20, 5]));
        assert_eq!(
            tag(&extra(valid | typed, 0x88a8)),
            Some([0x88, 0xa8, 0x20, 5])
        );
    }
}
