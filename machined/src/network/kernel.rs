//! The only file that uses rtnetlink, whose interface changes every few months.

use std::{io, net::IpAddr};

use futures_util::{Stream, StreamExt, TryStreamExt};
use rtnetlink::{
    AddressMessageBuilder, Handle, LinkUnspec, MulticastGroup, RouteMessageBuilder,
    packet_route::{
        address::{
            AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
        },
        link::{LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage},
        route::{
            RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
            RouteType,
        },
    },
};
use tokio::task::JoinHandle;

use super::{Address, DesiredRoute, KernelState, Link, Route, Step};
use crate::values::Cidr;

/// Why the kernel's network could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// A netlink socket could not be opened.
    #[error(
        "cannot open a netlink socket; machined needs CAP_NET_ADMIN and a kernel with rtnetlink"
    )]
    Open(#[source] io::Error),
    /// The kernel's state could not be read.
    #[error("cannot read the kernel's {what}")]
    Read {
        /// `links`, `addresses` or `routes`.
        what: &'static str,
        /// Why.
        source: rtnetlink::Error,
    },
    /// The kernel's answer was lost.
    #[error("the kernel did not answer on the netlink socket")]
    NoAnswer,
    /// The kernel refused a step.
    #[error("cannot {step}")]
    Apply {
        /// The step.
        step: String,
        /// Why.
        source: rtnetlink::Error,
    },
}

/// A connection to the kernel's network, which closes when this value is dropped.
pub(super) struct Kernel {
    handle: Handle,
    driver: JoinHandle<()>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Kernel {
    /// Opens the connection, and a stream with an item for each change of links or addresses.
    pub(super) fn open() -> Result<(Self, impl Stream<Item = ()> + Send + Unpin), NetlinkError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
        ];
        let (connection, handle, messages) =
            rtnetlink::new_multicast_connection(&groups).map_err(NetlinkError::Open)?;
        let driver = tokio::spawn(connection);
        Ok((Self { handle, driver }, messages.map(|_| ())))
    }

    /// Reads links, addresses and main-table routes.
    pub(super) async fn read(&self) -> Result<KernelState, NetlinkError> {
        let failed = |what| move |source| NetlinkError::Read { what, source };
        let links: Vec<LinkMessage> = self
            .handle
            .link()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(failed("links"))?;
        let addresses: Vec<AddressMessage> = self
            .handle
            .address()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(failed("addresses"))?;
        let mut routes = Vec::new();
        for all in [
            RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
            RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
        ] {
            let found: Vec<RouteMessage> = self
                .handle
                .route()
                .get(all)
                .execute()
                .try_collect()
                .await
                .map_err(failed("routes"))?;
            routes.extend(found.iter().filter_map(route));
        }
        let mut links: Vec<Link> = links.iter().map(link).collect();
        links.sort_by_key(|link| link.index);
        Ok(KernelState {
            links,
            addresses: addresses.iter().filter_map(address).collect(),
            routes,
        })
    }

    /// Applies one step.
    pub(super) async fn apply(&self, step: &Step) -> Result<(), NetlinkError> {
        let done = match step {
            Step::RemoveLink { index, .. } => self.handle.link().del(*index).execute().await,
            Step::SetUp { index, up, .. } => {
                let message = LinkUnspec::new_with_index(*index);
                let message = if *up { message.up() } else { message.down() };
                self.handle.link().set(message.build()).execute().await
            }
            Step::SetMtu { index, mtu, .. } => {
                let message = LinkUnspec::new_with_index(*index).mtu(*mtu);
                self.handle.link().set(message.build()).execute().await
            }
            Step::AddAddress { index, cidr, .. } => {
                self.handle
                    .address()
                    .add(*index, cidr.address(), cidr.prefix())
                    .execute()
                    .await
            }
            Step::RemoveAddress { index, cidr, .. } => {
                self.handle
                    .address()
                    .del(address_message(*index, *cidr))
                    .execute()
                    .await
            }
            Step::AddRoute { index, route, .. } => {
                self.handle
                    .route()
                    .add(route_message(*index, route))
                    .execute()
                    .await
            }
            Step::RemoveRoute { route, .. } => {
                let route_to_go = DesiredRoute {
                    destination: route.destination,
                    gateway: route.gateway,
                    source: None,
                    metric: route.metric,
                    onlink: false,
                    from_dhcp: false,
                };
                let mut message = route_message(route.index, &route_to_go);
                // The key alone identifies the route, whichever program made it.
                message.header.protocol = RouteProtocol::Unspec;
                message.header.scope = RouteScope::NoWhere;
                self.handle.route().del(message).execute().await
            }
        };
        done.map_err(|source| NetlinkError::Apply {
            step: step.to_string(),
            source,
        })
    }
}

fn link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: Vec::new(),
        up: message.header.flags.contains(LinkFlags::Up),
        carrier: message
            .header
            .flags
            .contains(LinkFlags::Up | LinkFlags::LowerUp),
        mtu: 0,
        kind: None,
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac) => link.mac.clone_from(mac),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    link
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut local = None;
    let mut peer = None;
    let mut permanent = message.header.flags.contains(AddressHeaderFlags::Permanent);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            AddressAttribute::Flags(flags) => permanent = flags.contains(AddressFlags::Permanent),
            _ => {}
        }
    }
    Some(Address {
        index: message.header.index,
        cidr: Cidr::new(local.or(peer)?, message.header.prefix_len)?,
        global: matches!(
            message.header.scope,
            AddressScope::Universe | AddressScope::Site
        ),
        permanent,
    })
}

/// Converts a route; none for the kinds that we neither make nor remove: other tables, multicast, blackholes, several next hops.
fn route(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    if header.kind != RouteType::Unicast || header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let mut index = None;
    let mut destination = None;
    let mut gateway = None;
    let mut source = None;
    let mut metric = 0;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(oif) => index = Some(*oif),
            RouteAttribute::Destination(address) => destination = ip(address),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Table(table) if *table != u32::from(RouteHeader::RT_TABLE_MAIN) => {
                return None;
            }
            RouteAttribute::MultiPath(_) => return None,
            _ => {}
        }
    }
    let any: IpAddr = match header.address_family {
        rtnetlink::packet_route::AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
        _ => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    Some(Route {
        index: index?,
        destination: Cidr::new(destination.unwrap_or(any), header.destination_prefix_length)?,
        gateway,
        source,
        metric,
        automatic: matches!(
            header.protocol,
            RouteProtocol::Kernel | RouteProtocol::Ra | RouteProtocol::IcmpRedirect
        ),
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

fn address_message(index: u32, cidr: Cidr) -> AddressMessage {
    match cidr.address() {
        IpAddr::V4(v4) => AddressMessageBuilder::<std::net::Ipv4Addr>::new()
            .index(index)
            .address(v4, cidr.prefix())
            .build(),
        IpAddr::V6(v6) => AddressMessageBuilder::<std::net::Ipv6Addr>::new()
            .index(index)
            .address(v6, cidr.prefix())
            .build(),
    }
}

fn route_message(index: u32, route: &DesiredRoute) -> RouteMessage {
    let protocol = if route.from_dhcp {
        RouteProtocol::Dhcp
    } else {
        RouteProtocol::Static
    };
    let prefix = route.destination.prefix();
    match route.destination.address() {
        IpAddr::V4(destination) => {
            let mut builder = RouteMessageBuilder::<std::net::Ipv4Addr>::new()
                .output_interface(index)
                .priority(route.metric)
                .protocol(protocol)
                .destination_prefix(destination, prefix);
            match route.gateway {
                Some(IpAddr::V4(gateway)) => builder = builder.gateway(gateway),
                // A destination without a next hop is on the link itself.
                _ => builder = builder.scope(RouteScope::Link),
            }
            if let Some(IpAddr::V4(source)) = route.source {
                builder = builder.pref_source(source);
            }
            if route.onlink {
                builder = builder.onlink();
            }
            builder.build()
        }
        IpAddr::V6(destination) => {
            let mut builder = RouteMessageBuilder::<std::net::Ipv6Addr>::new()
                .output_interface(index)
                .priority(route.metric)
                .protocol(protocol)
                .destination_prefix(destination, prefix);
            if let Some(IpAddr::V6(gateway)) = route.gateway {
                builder = builder.gateway(gateway);
            }
            if let Some(IpAddr::V6(source)) = route.source {
                builder = builder.pref_source(source);
            }
            builder.build()
        }
    }
}
