//! Messages of rtnetlink(7), as far as machined needs them: links, addresses and routes, from bytes and to bytes.
//!
//! `netlink-proto` and `netlink-packet-core` do all that is common to netlink: the socket, sequence numbers, the frames of
//! messages and of attributes. The crate with all of rtnetlink, `netlink-packet-route`, is not in use: it decodes the attributes
//! of every kind of link, tunnel and queue, which was a twentieth of machined, and machined reads a dozen of them.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use std::convert::Infallible;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

pub use decode::Malformed;
pub(super) use decode::{address, is_news, link, route};
pub(super) use encode::{Request, all_addresses, all_links, all_routes, request};

// Attributes of a link, of linux/if_link.h; libc has the other numbers.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;

// Origins of a route, and a flag of its next hop, of linux/rtnetlink.h.
const RTPROT_RA: u8 = 9;
const RTPROT_DHCP: u8 = 16;
const RTNH_F_ONLINK: u32 = 4;

const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;

/// A message without netlink's own header, and that header's field for the type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// `RTM_NEWLINK`, …
    kind: u16,
    /// The structure that belongs to the type, then attributes.
    body: Vec<u8>,
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

/// Takes every message as it is. It is decoded by the reader who asked for it: a notification counts as an event, with any content.
impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, body: &[u8]) -> Result<Self, Infallible> {
        Ok(Self {
            kind: header.message_type,
            body: body.to_vec(),
        })
    }
}
