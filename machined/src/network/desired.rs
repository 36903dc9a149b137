//! What the spec and the leases come to for the links that are there.

use std::{collections::BTreeMap, net::IpAddr};

use super::{DhcpSpec, KernelState, Lease, LinkSpec, NetworkSpec};
use crate::values::{Cidr, RouteSpec};

/// Metric of a route whose config names none; the same as that of DHCP routes and the kernel's own for IPv6.
const DEFAULT_METRIC: u32 = 1024;
/// Below this IPv6 is off and IPv4 hardly works (RFC 791 asks for 576); a DHCP server that says less is wrong.
const LEAST_DHCP_MTU: u16 = 576;

/// The state to reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// By name; links that are not named are left alone.
    pub links: BTreeMap<String, DesiredLink>,
}

/// The state of one link to reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredLink {
    /// Administratively up.
    pub up: bool,
    /// In bytes.
    pub mtu: Option<u32>,
    /// All addresses that it shall have.
    pub addresses: Vec<Cidr>,
    /// All routes over it.
    pub routes: Vec<DesiredRoute>,
    /// Whether it is ours to clean up: cleanup of an earlier generation on it are removed.
    pub managed: bool,
}

/// A route to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredRoute {
    /// Where to, host bits cleared.
    pub destination: Cidr,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// Lower wins.
    pub metric: u32,
    /// The gateway is on the link although no address of the link says so.
    pub onlink: bool,
    /// From a lease, as opposed to from config; shown by `ip route` as `proto dhcp`.
    pub from_dhcp: bool,
}

/// Which links run DHCP, and how.
///
/// Without any addressing in the config that is one link: `current` as long as it has a carrier or a lease, else the
/// first network card with a carrier. Staying with the current one keeps the address when a second cable is plugged in.
pub fn dhcp_links(
    spec: &NetworkSpec,
    kernel: &KernelState,
    current: Option<&str>,
    leases: &BTreeMap<String, Lease>,
) -> BTreeMap<String, DhcpSpec> {
    if !spec.is_automatic() {
        return spec
            .links
            .iter()
            .filter_map(|link| Some((link.name.clone(), link.dhcp.clone()?)))
            .collect();
    }
    let usable = |name: &str| {
        kernel
            .link(name)
            .is_some_and(|link| link.carrier || leases.contains_key(name))
            && spec.links.iter().all(|link| link.name != name || link.up)
    };
    let first = || {
        let mut cards = kernel
            .links
            .iter()
            .filter(|link| link.is_hardware() && link.carrier);
        cards
            .find(|link| usable(&link.name))
            .map(|link| link.name.as_str())
    };
    let chosen = current.filter(|name| usable(name)).or_else(first);
    chosen
        .map(|name| (name.to_owned(), DhcpSpec::default()))
        .into_iter()
        .collect()
}

/// The state to reach, given the links that are there and the leases that are held.
pub fn desired(
    spec: &NetworkSpec,
    kernel: &KernelState,
    dhcp: &BTreeMap<String, DhcpSpec>,
    leases: &BTreeMap<String, Lease>,
) -> Desired {
    let mut links = BTreeMap::new();
    for link in &kernel.links {
        let wanted = spec.links.iter().find(|wanted| wanted.name == link.name);
        // A network card must be up before it can tell whether it has a carrier.
        let searched = spec.is_automatic() && link.is_hardware();
        if link.loopback || searched || wanted.is_some() || dhcp.contains_key(&link.name) {
            let mut desired = wanted.map_or_else(|| unnamed(!link.loopback), from_config);
            if let (Some(spec), Some(lease)) = (dhcp.get(&link.name), leases.get(&link.name)) {
                add_lease(&mut desired, spec, lease);
            }
            mark_onlink(&mut desired);
            links.insert(link.name.clone(), desired);
        } else if link.is_hardware() {
            links.insert(
                link.name.clone(),
                DesiredLink {
                    up: link.up,
                    managed: true,
                    ..DesiredLink::default()
                },
            );
        }
    }
    Desired { links }
}

fn unnamed(managed: bool) -> DesiredLink {
    DesiredLink {
        up: true,
        managed,
        ..DesiredLink::default()
    }
}

fn from_config(spec: &LinkSpec) -> DesiredLink {
    DesiredLink {
        up: spec.up,
        mtu: spec.mtu,
        addresses: spec.addresses.clone(),
        routes: spec.routes.iter().filter_map(route_from_config).collect(),
        managed: true,
    }
}

/// None for a route that says neither where to nor over which gateway: config refuses it, the kernel would as well.
fn route_from_config(spec: &RouteSpec) -> Option<DesiredRoute> {
    let destination = spec
        .destination
        .or_else(|| everything_like(spec.gateway?))?;
    Some(DesiredRoute {
        destination: destination.network(),
        gateway: spec.gateway,
        source: spec.source,
        metric: spec.metric.unwrap_or(DEFAULT_METRIC),
        onlink: false,
        from_dhcp: false,
    })
}

fn everything_like(address: IpAddr) -> Option<Cidr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    Cidr::new(any, 0)
}

fn add_lease(link: &mut DesiredLink, spec: &DhcpSpec, lease: &Lease) {
    if !link.addresses.contains(&lease.address) {
        link.addresses.push(lease.address);
    }
    link.mtu = link.mtu.or(lease
        .mtu
        .filter(|mtu| *mtu >= LEAST_DHCP_MTU)
        .map(u32::from));
    if spec.ignore_routes {
        return;
    }
    for (destination, router) in lease.routes() {
        let route = DesiredRoute {
            destination: destination.network(),
            // RFC 3442: router 0.0.0.0 means that the destination is on the link.
            gateway: (!router.is_unspecified()).then_some(router.into()),
            source: Some(lease.address.address()),
            metric: spec.route_metric,
            onlink: false,
            from_dhcp: true,
        };
        let taken = link
            .routes
            .iter()
            .any(|other| other.destination == route.destination && other.metric == route.metric);
        if !taken {
            link.routes.push(route);
        }
    }
}

/// Clouds hand out /32 addresses with a gateway outside of them; the kernel takes such a route only with this mark.
fn mark_onlink(link: &mut DesiredLink) {
    for route in &mut link.routes {
        route.onlink = route.gateway.is_some_and(|gateway| {
            gateway.is_ipv4()
                && !link
                    .addresses
                    .iter()
                    .any(|address| address.contains(gateway))
        });
    }
}
