//! Links, addresses, names.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::{
    super::{
        model::{
            Cidr, Dhcp4, Hostname, Link, LinkAddress, LinkName, Network, RouteSpec, StaticHost,
        },
        section::{Scalar, Section},
        shape::{integer, shorten},
    },
    Documents,
};

/// Smallest MTU of IPv4 (RFC 791), largest of any link.
const MTU: std::ops::RangeInclusive<u32> = 68..=65536;
const METRIC: std::ops::RangeInclusive<u32> = 0..=u32::MAX;
const DNS_PORT: u16 = 53;

pub(super) fn network(documents: &Documents<'_>) -> Network {
    let mut network = Network::default();
    if let Some(old) = documents.section("network") {
        let mut seen = HashSet::new();
        for (_, interface) in old.sections("interfaces") {
            if let Some(name) = interface.text("interface")
                && !seen.insert(name)
            {
                interface.wrong_field(
                    "interface",
                    format_args!(
                        "`{}` has an entry above; write all of its settings in one",
                        shorten(name)
                    ),
                );
                continue;
            }
            old_interface(&interface, &mut network);
        }
        network.nameservers = addresses(&old, "nameservers");
        network.search_domains = old.parsed_list("searchDomains");
        network.static_hosts = old
            .sections("extraHostEntries")
            .iter()
            .filter_map(|(_, entry)| static_host(entry, "ip", "aliases"))
            .collect();
    }
    network.links.extend(
        documents
            .of("LinkConfig")
            .filter_map(|link| self::link(&link)),
    );
    network
        .dhcp4
        .extend(documents.of("DHCPv4Config").filter_map(|dhcp| {
            Some(Dhcp4 {
                link: dhcp.required("name")?,
                route_metric: dhcp.number("routeMetric", METRIC),
                ignore_hostname: dhcp.flag("ignoreHostname").unwrap_or(false),
                ignore_routes: dhcp.flag("ignoreRoutes").unwrap_or(false),
            })
        }));
    if let Some(resolver) = documents.one("ResolverConfig") {
        network.nameservers = resolver
            .sections("nameservers")
            .iter()
            // Servers for DNS over TLS are left out: unencrypted queries would reveal to the network what the config hides.
            .filter(|(_, server)| matches!(server.text("protocol"), None | Some("Do53")))
            .filter_map(|(_, server)| server.required::<IpAddr>("address"))
            .map(|address| SocketAddr::new(address, DNS_PORT))
            .collect();
        let domains = resolver.section("searchDomains");
        network.search_domains = domains
            .map(|section| section.parsed_list("domains"))
            .unwrap_or_default();
    }
    network.static_hosts.extend(
        documents
            .of("StaticHostConfig")
            .filter_map(|host| static_host(&host, "name", "hostnames")),
    );
    network
}

fn addresses(section: &Section<'_>, field: &str) -> Vec<SocketAddr> {
    section
        .parsed_list(field)
        .into_iter()
        .map(|address: IpAddr| SocketAddr::new(address, DNS_PORT))
        .collect()
}

fn static_host(section: &Section<'_>, address: &str, names: &str) -> Option<StaticHost> {
    let hostnames: Vec<Hostname> = section.parsed_list(names);
    if section.texts(names).is_empty() {
        section.wrong_field(names, "at least one name belongs here");
    }
    Some(StaticHost {
        address: section.required(address)?,
        hostnames,
    })
}

fn link(document: &Section<'_>) -> Option<Link> {
    Some(Link {
        name: document.required("name")?,
        up: document.flag("up").unwrap_or(true),
        mtu: mtu(document),
        addresses: document
            .sections("addresses")
            .iter()
            .filter_map(|(_, address)| {
                Some(LinkAddress {
                    address: address.required("address")?,
                    route_priority: address.number("routePriority", METRIC),
                })
            })
            .collect(),
        routes: document
            .sections("routes")
            .iter()
            .filter_map(|(_, route)| self::route(route, "destination"))
            .collect(),
    })
}

/// Reads an MTU. Zero leaves it unset, as in Talos.
fn mtu(section: &Section<'_>) -> Option<u32> {
    let given = section.text("mtu").and_then(integer);
    given.filter(|mtu| *mtu != 0)?;
    section.number("mtu", MTU)
}

/// Reads a route. `destination`: the name of that field in this shape.
fn route(section: &Section<'_>, destination: &str) -> Option<RouteSpec> {
    // Checked, although it is not used yet.
    mtu(section);
    let to = section.parsed::<Cidr>(destination);
    let gateway: Option<IpAddr> = section.parsed("gateway");
    let is_everywhere = |to: &Cidr| to.prefix() == 0 && to.address().is_unspecified();
    let mut route = RouteSpec {
        // Without a gateway it alone tells the family.
        destination: to.filter(|to| gateway.is_none() || !is_everywhere(to)),
        gateway,
        source: section.parsed("source"),
        metric: section.number("metric", METRIC),
    };
    if section.text(destination).is_none() && route.gateway.is_none() {
        section.wrong("a route needs a destination, a gateway, or both");
        return None;
    }
    let to = to.map(Cidr::address);
    if are_of_two_families(to, route.gateway) {
        section.wrong_field(
            "gateway",
            "the gateway and the destination are of different families",
        );
        return None;
    }
    if are_of_two_families(to.or(route.gateway), route.source) {
        section.wrong_field_if_new(
            "source",
            "the source and the route are of different families",
        );
        // The kernel never had it either.
        route.source = None;
    }
    Some(route)
}

fn are_of_two_families(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let both = one.zip(other);
    both.is_some_and(|(one, other)| one.is_ipv4() != other.is_ipv4())
}

/// Reads an interface of the large document: a link and its DHCP at once. An interface with a selector has no name yet; a warning reports
/// it.
fn old_interface(interface: &Section<'_>, network: &mut Network) {
    let Some(name) = interface.parsed::<LinkName>("interface") else {
        return;
    };
    if interface.flag("ignore") == Some(true) {
        return;
    }
    let mut addresses: Vec<LinkAddress> = interface
        .texts("addresses")
        .iter()
        .filter_map(old_address)
        .collect();
    // `cidr` is the older name of `addresses`, from before 0.12.
    addresses.extend(interface.parsed::<Cidr>("cidr").map(|address| LinkAddress {
        address,
        route_priority: None,
    }));
    network.links.push(Link {
        name: name.clone(),
        up: true,
        mtu: mtu(interface),
        addresses,
        routes: interface
            .sections("routes")
            .iter()
            .filter_map(|(_, route)| self::route(route, "network"))
            .collect(),
    });
    let options = interface.section("dhcpOptions");
    let v4 = options
        .as_ref()
        .and_then(|options| options.flag("ipv4"))
        .unwrap_or(true);
    if interface.flag("dhcp") == Some(true) && v4 {
        network.dhcp4.push(Dhcp4 {
            link: name,
            route_metric: options.and_then(|options| options.number("routeMetric", METRIC)),
            ignore_hostname: false,
            ignore_routes: false,
        });
    }
}

/// An address with or without a prefix.
fn old_address(text: &Scalar<'_>) -> Option<LinkAddress> {
    let address = match text.text.parse::<IpAddr>() {
        Ok(address) => Cidr::host(address),
        Err(_) => text.parsed()?,
    };
    Some(LinkAddress {
        address,
        route_priority: None,
    })
}
