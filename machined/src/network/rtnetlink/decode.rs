//! From the kernel's messages to links, addresses and routes. Attributes that are not of interest are skipped.

use std::net::{Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{DecodeError, NlasIterator, parse_ip, parse_u32};

use super::{
    super::{Address, Link, Route},
    AF_INET, AF_INET6, IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MTU, Message,
    RTPROT_DHCP, RTPROT_RA,
};
use crate::values::Cidr;

/// Why a message could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// The message has another type than the request asks for.
    #[error("the message has type {found} instead of {expected}")]
    Type {
        /// The type that answers the request.
        expected: u16,
        /// The message's type.
        found: u16,
    },
    /// The message ends before its structure does.
    #[error("the message has {length} bytes, which is less than its {structure}")]
    Short {
        /// `ifinfomsg`, `ifaddrmsg` or `rtmsg`.
        structure: &'static str,
        /// The message's length.
        length: usize,
    },
    /// The bounds of an attribute are wrong, or the length of its value.
    #[error("the message has a malformed attribute")]
    Attribute(#[from] DecodeError),
}

/// Decodes an answer to [`super::all_links`].
pub(in crate::network) fn link(message: &Message) -> Result<Link, Malformed> {
    let (header, attributes) = split::<16>(message, libc::RTM_NEWLINK, "ifinfomsg")?;
    let &[_, _, t0, t1, i0, i1, i2, i3, f0, f1, f2, f3, _, _, _, _] = header;
    let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
    let is_set = |flag: libc::c_int| flags & flag as u32 != 0;
    let mut link = Link {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        name: String::new(),
        mac: Vec::new(),
        up: is_set(libc::IFF_UP),
        carrier: is_set(libc::IFF_UP) && is_set(libc::IFF_LOWER_UP),
        mtu: 0,
        kind: None,
        loopback: is_set(libc::IFF_LOOPBACK),
        ethernet: u16::from_ne_bytes([t0, t1]) == libc::ARPHRD_ETHER,
    };
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = value.to_vec(),
            IFLA_MTU => link.mtu = parse_u32(value)?,
            IFLA_LINKINFO => link.kind = kind(value)?,
            _ => {}
        }
    }
    Ok(link)
}

/// Finds the kind among the attributes of `IFLA_LINKINFO`.
fn kind(attributes: &[u8]) -> Result<Option<String>, DecodeError> {
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute?;
        if attribute.kind() == IFLA_INFO_KIND {
            return Ok(Some(text(attribute.value())));
        }
    }
    Ok(None)
}

/// Decodes an answer to [`super::all_addresses`]; none for an address that is not of IP.
pub(in crate::network) fn address(message: &Message) -> Result<Option<Address>, Malformed> {
    let (header, attributes) = split::<8>(message, libc::RTM_NEWADDR, "ifaddrmsg")?;
    let &[family, prefix, flags, scope, i0, i1, i2, i3] = header;
    if family != AF_INET && family != AF_INET6 {
        return Ok(None);
    }
    let mut local = None;
    let mut peer = None;
    // The attribute has more bits than the header's field, and the kernel may leave it out.
    let mut flags = u32::from(flags);
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            libc::IFA_LOCAL => local = Some(parse_ip(value)?),
            libc::IFA_ADDRESS => peer = Some(parse_ip(value)?),
            libc::IFA_FLAGS => flags = parse_u32(value)?,
            _ => {}
        }
    }
    let cidr = local
        .or(peer)
        .and_then(|address| Cidr::new(address, prefix));
    Ok(cidr.map(|cidr| Address {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        cidr,
        global: matches!(scope, libc::RT_SCOPE_UNIVERSE | libc::RT_SCOPE_SITE),
        permanent: flags & libc::IFA_F_PERMANENT != 0,
    }))
}

/// Decodes an answer to [`super::all_routes`]; none for the routes that we neither make nor remove: other tables, multicast,
/// blackholes, several next hops.
pub(in crate::network) fn route(message: &Message) -> Result<Option<Route>, Malformed> {
    let (header, attributes) = split::<12>(message, libc::RTM_NEWROUTE, "rtmsg")?;
    let &[family, prefix, _, _, table, protocol, _, kind, _, _, _, _] = header;
    let mut destination = match family {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return Ok(None),
    };
    if kind != libc::RTN_UNICAST || table != libc::RT_TABLE_MAIN {
        return Ok(None);
    }
    let mut index = None;
    let mut gateway = None;
    let mut source = None;
    let mut metric = 0;
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            libc::RTA_OIF => index = Some(parse_u32(value)?),
            libc::RTA_DST => destination = parse_ip(value)?,
            libc::RTA_GATEWAY => gateway = Some(parse_ip(value)?),
            libc::RTA_PREFSRC => source = Some(parse_ip(value)?),
            libc::RTA_PRIORITY => metric = parse_u32(value)?,
            libc::RTA_TABLE if parse_u32(value)? != u32::from(libc::RT_TABLE_MAIN) => {
                return Ok(None);
            }
            libc::RTA_MULTIPATH => return Ok(None),
            _ => {}
        }
    }
    let route = index
        .zip(Cidr::new(destination, prefix))
        .map(|(index, destination)| Route {
            index,
            destination,
            gateway,
            source,
            metric,
            automatic: matches!(
                protocol,
                libc::RTPROT_KERNEL | libc::RTPROT_REDIRECT | RTPROT_RA
            ),
        });
    Ok(route)
}

/// Returns whether a notification may tell of a part of the network that machined acts on. Of routes these are the default ones, and those of
/// the kinds that it makes itself: the networks of containers may have thousands of others, which come and go.
pub(in crate::network) fn is_news(message: &Message) -> bool {
    if ![libc::RTM_NEWROUTE, libc::RTM_DELROUTE].contains(&message.kind) {
        return true;
    }
    match message.body.as_slice() {
        [_, prefix, _, _, table, protocol, ..] => {
            *table == libc::RT_TABLE_MAIN
                && (*prefix == 0 || [libc::RTPROT_STATIC, RTPROT_DHCP].contains(protocol))
        }
        _ => true,
    }
}

/// Splits a message of this type into its structure of `N` bytes and its attributes.
fn split<'a, const N: usize>(
    message: &'a Message,
    expected: u16,
    structure: &'static str,
) -> Result<(&'a [u8; N], &'a [u8]), Malformed> {
    if message.kind != expected {
        return Err(Malformed::Type {
            expected,
            found: message.kind,
        });
    }
    message.body.split_first_chunk().ok_or(Malformed::Short {
        structure,
        length: message.body.len(),
    })
}

/// Decodes a name, which ends at its first zero byte. The kernel takes almost any bytes in a link's name, and a strange name must not
/// hide the other links, so bytes that are not UTF-8 are replaced.
fn text(value: &[u8]) -> String {
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
