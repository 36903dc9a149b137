//! From steps and queries to messages for the kernel.

use std::net::{IpAddr, Ipv4Addr};

use libc::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use netlink_packet_core::{DefaultNla, Emitable};

use super::{
    super::{DesiredRoute, Route, Step},
    AF_INET, AF_INET6, IFLA_MTU, Message, RTNH_F_ONLINK, RTPROT_DHCP,
};
use crate::values::Cidr;

/// A message to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::network) struct Request {
    /// `NLM_F_REQUEST` and others, for netlink's header.
    pub(in crate::network) flags: u16,
    /// The message.
    pub(in crate::network) message: Message,
}

impl Request {
    /// Asks for all objects of a kind.
    fn dump(message: Message) -> Self {
        Self::new(NLM_F_DUMP, message)
    }

    /// Makes an object, which must not be there yet, or changes a link; the kernel confirms it.
    fn make(message: Message) -> Self {
        Self::new(NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, message)
    }

    /// Removes an object; the kernel confirms it.
    fn remove(message: Message) -> Self {
        Self::new(NLM_F_ACK, message)
    }

    fn new(flags: libc::c_int, message: Message) -> Self {
        let flags = (NLM_F_REQUEST | flags) as u16;
        Self { flags, message }
    }
}

/// Asks for all links.
pub(in crate::network) fn all_links() -> Request {
    Request::dump(message(libc::RTM_GETLINK, &ifinfomsg(0, 0, 0), &[]))
}

/// Asks for all addresses, of every family.
pub(in crate::network) fn all_addresses() -> Request {
    Request::dump(message(libc::RTM_GETADDR, &ifaddrmsg(0, 0, 0), &[]))
}

/// Asks for all routes, first of IPv4, then of IPv6.
pub(in crate::network) fn all_routes() -> [Request; 2] {
    [AF_INET, AF_INET6].map(|family| {
        let header = Rtmsg {
            family,
            ..Rtmsg::default()
        };
        Request::dump(message(libc::RTM_GETROUTE, &header.bytes(), &[]))
    })
}

/// The request that applies a step.
pub(in crate::network) fn request(step: &Step) -> Request {
    let is_up = libc::IFF_UP as u32;
    match step {
        Step::RemoveLink { index, .. } => {
            Request::remove(message(libc::RTM_DELLINK, &ifinfomsg(*index, 0, 0), &[]))
        }
        Step::SetUp { index, up, .. } => {
            let header = ifinfomsg(*index, if *up { is_up } else { 0 }, is_up);
            Request::make(message(libc::RTM_SETLINK, &header, &[]))
        }
        Step::SetMtu { index, mtu, .. } => {
            let header = ifinfomsg(*index, 0, 0);
            Request::make(message(
                libc::RTM_SETLINK,
                &header,
                &[number(IFLA_MTU, *mtu)],
            ))
        }
        Step::AddAddress { index, cidr, .. } => {
            Request::make(address(libc::RTM_NEWADDR, *index, *cidr))
        }
        Step::RemoveAddress { index, cidr, .. } => {
            Request::remove(address(libc::RTM_DELADDR, *index, *cidr))
        }
        Step::AddRoute { index, route, .. } => Request::make(new_route(*index, route)),
        Step::RemoveRoute { route, .. } => Request::remove(old_route(route)),
    }
}

fn address(kind: u16, index: u32, cidr: Cidr) -> Message {
    let address = cidr.address();
    let header = ifaddrmsg(family(address), cidr.prefix(), index);
    let mut attributes = Vec::new();
    // A link has no multicast address of its own: the kernel refuses the message without one.
    if !address.is_multicast() {
        attributes.push(ip(libc::IFA_ADDRESS, address));
        attributes.push(ip(libc::IFA_LOCAL, address));
        attributes.extend(broadcast(cidr).map(|address| ip(libc::IFA_BROADCAST, address)));
    }
    message(kind, &header, &attributes)
}

/// The address with all host bits set; IPv6 has no broadcast, nor has a network of one or two addresses.
fn broadcast(cidr: Cidr) -> Option<IpAddr> {
    match cidr.address() {
        IpAddr::V4(address) if cidr.prefix() < 31 => {
            let host_bits = u32::MAX >> cidr.prefix();
            Some(Ipv4Addr::from_bits(address.to_bits() | host_bits).into())
        }
        _ => None,
    }
}

fn new_route(index: u32, route: &DesiredRoute) -> Message {
    let destination = route.destination.address();
    let of_its_family = |address: &IpAddr| address.is_ipv4() == destination.is_ipv4();
    let gateway = route.gateway.filter(of_its_family);
    let source = route.source.filter(of_its_family);
    let header = Rtmsg {
        family: family(destination),
        prefix: route.destination.prefix(),
        table: libc::RT_TABLE_MAIN,
        protocol: if route.from_dhcp {
            RTPROT_DHCP
        } else {
            libc::RTPROT_STATIC
        },
        // A destination without a next hop is on the link itself. IPv6 has no scopes of routes.
        scope: if gateway.is_none() && destination.is_ipv4() {
            libc::RT_SCOPE_LINK
        } else {
            libc::RT_SCOPE_UNIVERSE
        },
        kind: libc::RTN_UNICAST,
        flags: if route.onlink && destination.is_ipv4() {
            RTNH_F_ONLINK
        } else {
            0
        },
    };
    let mut attributes = route_key(index, route.metric, destination, gateway);
    attributes.extend(source.map(|source| ip(libc::RTA_PREFSRC, source)));
    message(libc::RTM_NEWROUTE, &header.bytes(), &attributes)
}

fn old_route(route: &Route) -> Message {
    let destination = route.destination.address();
    let header = Rtmsg {
        family: family(destination),
        prefix: route.destination.prefix(),
        table: libc::RT_TABLE_MAIN,
        // The key alone identifies the route, whichever program made it.
        protocol: libc::RTPROT_UNSPEC,
        scope: libc::RT_SCOPE_NOWHERE,
        kind: libc::RTN_UNICAST,
        flags: 0,
    };
    let attributes = route_key(route.index, route.metric, destination, route.gateway);
    message(libc::RTM_DELROUTE, &header.bytes(), &attributes)
}

fn route_key(
    index: u32,
    metric: u32,
    destination: IpAddr,
    gateway: Option<IpAddr>,
) -> Vec<DefaultNla> {
    let mut attributes = vec![
        number(libc::RTA_OIF, index),
        number(libc::RTA_PRIORITY, metric),
        ip(libc::RTA_DST, destination),
    ];
    attributes.extend(gateway.map(|gateway| ip(libc::RTA_GATEWAY, gateway)));
    attributes
}

/// The structure of messages about links; `change` has the flags that are to get the values in `flags`.
fn ifinfomsg(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let family_and_type = [libc::AF_UNSPEC as u8, 0, 0, 0];
    [
        family_and_type,
        index.to_ne_bytes(),
        flags.to_ne_bytes(),
        change.to_ne_bytes(),
    ]
    .concat()
}

/// The structure of messages about addresses.
fn ifaddrmsg(family: u8, prefix: u8, index: u32) -> Vec<u8> {
    let flags = 0;
    [
        [family, prefix, flags, libc::RT_SCOPE_UNIVERSE],
        index.to_ne_bytes(),
    ]
    .concat()
}

/// The structure of messages about routes.
#[derive(Default)]
struct Rtmsg {
    family: u8,
    prefix: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

impl Rtmsg {
    fn bytes(&self) -> Vec<u8> {
        // Routes by source or by type of service are none of ours.
        let (source_prefix, service) = (0, 0);
        [
            [self.family, self.prefix, source_prefix, service],
            [self.table, self.protocol, self.scope, self.kind],
            self.flags.to_ne_bytes(),
        ]
        .concat()
    }
}

fn message(kind: u16, header: &[u8], attributes: &[DefaultNla]) -> Message {
    let mut body = header.to_vec();
    body.resize(header.len() + attributes.buffer_len(), 0);
    attributes.emit(&mut body[header.len()..]);
    Message { kind, body }
}

fn number(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn ip(kind: u16, address: IpAddr) -> DefaultNla {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    DefaultNla::new(kind, bytes)
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}
