//! What the network shall be: filled from the machine config, knows nothing of YAML.

use std::net::IpAddr;

use crate::values::{Cidr, HostnamePolicy, RouteSpec, StaticHost};

/// The whole network. The default one asks for DHCP on the first link that has a carrier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkSpec {
    /// What to do with single links. Empty, or without any addressing: DHCP on the first link with a carrier.
    pub links: Vec<LinkSpec>,
    /// Resolvers that replace what DHCP says.
    pub nameservers: Vec<IpAddr>,
    /// Search domains that replace what DHCP says.
    pub search_domains: Vec<String>,
    /// Where the hostname comes from.
    pub hostname: HostnamePolicy,
    /// More lines for /etc/hosts.
    pub hosts: Vec<StaticHost>,
}

impl NetworkSpec {
    /// Whether the links are left to us: no link has addresses or DHCP.
    pub fn is_automatic(&self) -> bool {
        self.links
            .iter()
            .all(|link| link.dhcp.is_none() && link.addresses.is_empty())
    }
}

/// What one link shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// The kernel's name for it, such as `eth0`.
    pub name: String,
    /// Down only when the config says so.
    pub up: bool,
    /// Largest packet in bytes; none leaves the driver's or what DHCP says.
    pub mtu: Option<u32>,
    /// Static addresses.
    pub addresses: Vec<Cidr>,
    /// Static routes.
    pub routes: Vec<RouteSpec>,
    /// Ask a DHCPv4 server.
    pub dhcp: Option<DhcpSpec>,
}

impl LinkSpec {
    /// A link that is brought up and has no addresses.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            up: true,
            mtu: None,
            addresses: Vec::new(),
            routes: Vec::new(),
            dhcp: None,
        }
    }
}

/// How to use DHCPv4 on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpSpec {
    /// Metric of the routes from the lease.
    pub route_metric: u32,
    /// Do not take the hostname from the lease.
    pub ignore_hostname: bool,
    /// Do not take routes from the lease.
    pub ignore_routes: bool,
}

impl Default for DhcpSpec {
    /// Metric 1024, as Talos and systemd-networkd have it: a static route without metric wins.
    fn default() -> Self {
        Self {
            route_metric: 1024,
            ignore_hostname: false,
            ignore_routes: false,
        }
    }
}
