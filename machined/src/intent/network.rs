//! The config's network: links, addresses, resolvers and the hostname.

use std::collections::BTreeMap;

use crate::config::MachineConfig;
use crate::network::{DhcpSpec, LinkSpec, NetworkSpec};

/// Returns the network that the config asks for.
pub fn network(config: &MachineConfig) -> NetworkSpec {
    let mut links: BTreeMap<String, LinkSpec> = BTreeMap::new();
    for link in &config.network.links {
        let spec = links
            .entry(link.name.to_string())
            .or_insert_with(|| LinkSpec::new(link.name.as_str()));
        spec.up = link.up;
        spec.mtu = link.mtu;
        spec.addresses = link.addresses.iter().map(|entry| entry.address).collect();
        spec.routes = link.routes.clone();
    }
    for dhcp in &config.network.dhcp4 {
        let spec = links
            .entry(dhcp.link.to_string())
            .or_insert_with(|| LinkSpec::new(dhcp.link.as_str()));
        let usual = DhcpSpec::default();
        spec.dhcp = Some(DhcpSpec {
            route_metric: dhcp.route_metric.unwrap_or(usual.route_metric),
            ignore_hostname: dhcp.ignore_hostname,
            ignore_routes: dhcp.ignore_routes,
        });
    }
    NetworkSpec {
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
        hostname: config.hostname.clone(),
        hosts: config.network.static_hosts.clone(),
    }
}
