//! Links, addresses, resolvers and the hostname.

use std::collections::BTreeMap;

use crate::config::{self, MachineConfig};
use crate::network::{Cidr, DhcpWish, HostnamePolicy, LinkWish, NetworkWish, RouteWish};

/// The network that the config asks for.
pub fn network(config: &MachineConfig) -> NetworkWish {
    let mut links: BTreeMap<String, LinkWish> = BTreeMap::new();
    for link in &config.network.links {
        let wish = links
            .entry(link.name.to_string())
            .or_insert_with(|| LinkWish::new(link.name.as_str()));
        wish.up = link.up;
        wish.mtu = link.mtu;
        wish.addresses = link
            .addresses
            .iter()
            .filter_map(|entry| cidr(&entry.address))
            .collect();
        wish.routes = link.routes.iter().map(route).collect();
    }
    for dhcp in &config.network.dhcp4 {
        let wish = links
            .entry(dhcp.link.to_string())
            .or_insert_with(|| LinkWish::new(dhcp.link.as_str()));
        let usual = DhcpWish::default();
        wish.dhcp = Some(DhcpWish {
            route_metric: dhcp.route_metric.unwrap_or(usual.route_metric),
            ignore_hostname: dhcp.ignore_hostname,
            ignore_routes: dhcp.ignore_routes,
        });
    }
    NetworkWish {
        links: links.into_values().collect(),
        nameservers: config
            .network
            .nameservers
            .iter()
            .map(|server| server.ip())
            .collect(),
        search_domains: config
            .network
            .search_domains
            .iter()
            .map(ToString::to_string)
            .collect(),
        hostname: match &config.hostname {
            config::HostnamePolicy::Fixed(name) => HostnamePolicy::Fixed(name.to_string()),
            config::HostnamePolicy::Stable => HostnamePolicy::Stable,
            config::HostnamePolicy::Off => HostnamePolicy::DhcpOnly,
        },
        hosts: config
            .network
            .static_hosts
            .iter()
            .map(|host| {
                (
                    host.address,
                    host.hostnames.iter().map(ToString::to_string).collect(),
                )
            })
            .collect(),
    }
}

fn cidr(cidr: &config::Cidr) -> Option<Cidr> {
    Cidr::new(cidr.address, cidr.prefix)
}

fn route(route: &config::Route) -> RouteWish {
    RouteWish {
        destination: route.destination.as_ref().and_then(cidr),
        gateway: route.gateway,
        source: route.source,
        metric: route.metric,
    }
}
