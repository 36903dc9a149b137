//! A listening TCP socket for IPv6 and IPv4 at once.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen, socket_with,
    sockopt::{set_ipv6_v6only, set_socket_reuseaddr},
};

/// Limit on connections that wait while no process accepts, for example during a swap of generations.
pub const BACKLOG: u16 = 1024;

/// Listens on a port of all addresses.
pub fn on_all_addresses(port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    set_ipv6_v6only(&socket, false)?;
    set_socket_reuseaddr(&socket, true)?;
    bind(
        &socket,
        &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0),
    )?;
    listen(&socket, BACKLOG.into())?;
    Ok(socket)
}
