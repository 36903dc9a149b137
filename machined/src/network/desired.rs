//! The desired state of the existing links, from the spec and the leases.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{DhcpSpec, KernelState, Lease, LinkSpec, NetworkSpec};
use crate::values::{Cidr, RouteSpec};

/// Metric of a route whose config names none. The kernel's own IPv6 routes have the same, and DHCP routes one from the same on.
const DEFAULT_METRIC: u32 = 1024;
/// Lower limit on an MTU from DHCP. Below it IPv6 is off and IPv4 hardly works (RFC 791 asks for 576), so the DHCP server is wrong.
const LEAST_DHCP_MTU: u16 = 576;

/// The state to reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// Links by name; of links that are not listed, only what machined itself has set is undone.
    pub links: BTreeMap<String, DesiredLink>,
}

/// The desired state of one link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredLink {
    /// Whether it is administratively up.
    pub up: bool,
    /// Largest packet, in bytes; none is the one that the link had before machined set another.
    pub mtu: Option<u32>,
    /// All its addresses.
    pub addresses: Vec<Cidr>,
    /// All routes over it.
    pub routes: Vec<DesiredRoute>,
    /// Whether addresses and routes of an earlier generation are removed from it.
    pub managed: bool,
}

/// A desired route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredRoute {
    /// The destination, host bits cleared.
    pub destination: Cidr,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The metric; the lower one wins.
    pub metric: u32,
    /// Whether the gateway is on the link although no address of the link covers it.
    pub onlink: bool,
    /// Whether it comes from a lease, as opposed to the config; `ip route` shows it as `proto dhcp`.
    pub from_dhcp: bool,
}

/// Returns the links to run DHCP on, each with its settings.
///
/// If the config has no addressing at all, it is one link: `current` as long as that has a carrier or a lease, else the first network
/// card with a carrier. Staying with the current one keeps the address when a second cable is plugged in.
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

/// Computes the desired state from the spec, the existing links and the current leases.
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
            if let (Some(of_link), Some(lease)) = (dhcp.get(&link.name), leases.get(&link.name)) {
                add_lease(&mut desired, of_link, lease, |destination| {
                    lease_metric(destination, &link.name, spec, dhcp)
                });
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

/// Converts a route of the config; none for one without destination and gateway, which the config check refuses, as the kernel would.
fn route_from_config(spec: &RouteSpec) -> Option<DesiredRoute> {
    let destination = spec
        .destination
        .or_else(|| everything_like(spec.gateway?))?;
    // Nor does the kernel keep an address of zeros, which is none to it.
    let given = |address: Option<IpAddr>| address.filter(|address| !address.is_unspecified());
    // To the kernel an IPv6 route of metric 0 is one without a metric: it would come back with 1024, and never be the one that is wanted.
    let named = |metric: &u32| *metric != 0 || destination.address().is_ipv4();
    Some(DesiredRoute {
        destination: destination.network(),
        gateway: given(spec.gateway),
        source: given(spec.source),
        metric: spec.metric.filter(named).unwrap_or(DEFAULT_METRIC),
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

/// Returns the metric of a lease's route: the link's own one, or the next that is free. The kernel takes only one IPv4 route per
/// destination and metric, whatever the link. Routes of the config come first, then the links by metric and name. A link that has no lease
/// counts too, so that a lease that comes or goes moves no route of another link.
fn lease_metric(
    destination: Cidr,
    link: &str,
    spec: &NetworkSpec,
    dhcp: &BTreeMap<String, DhcpSpec>,
) -> u32 {
    let up = spec.links.iter().filter(|link| link.up);
    let mut taken: BTreeSet<u32> = up
        .flat_map(|link| link.routes.iter().filter_map(route_from_config))
        .filter(|route| route.destination == destination)
        .map(|route| route.metric)
        .collect();
    let mut links: Vec<(u32, &str)> = dhcp
        .iter()
        .filter(|(_, dhcp)| !dhcp.ignore_routes)
        .map(|(name, dhcp)| (dhcp.route_metric, name.as_str()))
        .collect();
    links.sort_unstable();
    for (own, name) in links {
        let free = (own..=u32::MAX).find(|metric| !taken.contains(metric));
        let metric = free.unwrap_or(own);
        if name == link {
            return metric;
        }
        taken.insert(metric);
    }
    // Not reached: the lease is one of these links'.
    DEFAULT_METRIC
}

fn add_lease(link: &mut DesiredLink, spec: &DhcpSpec, lease: &Lease, metric: impl Fn(Cidr) -> u32) {
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
        let destination = destination.network();
        let route = DesiredRoute {
            destination,
            // RFC 3442: router 0.0.0.0 means that the destination is on the link.
            gateway: (!router.is_unspecified()).then_some(router.into()),
            source: Some(lease.address.address()),
            metric: metric(destination),
            onlink: false,
            from_dhcp: true,
        };
        // A route of the config takes the place of the lease's on the same link, and the first router that of another one.
        let mut others = link.routes.iter();
        let is_taken = others.any(|other| {
            other.destination == destination
                && (other.from_dhcp || other.metric == spec.route_metric)
        });
        if !is_taken {
            link.routes.push(route);
        }
    }
}

/// Marks routes whose gateway is outside of the link's addresses. Clouds hand out /32 addresses with such gateways, and the
/// kernel takes such a route only with this mark.
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
