//! The desired network, filled from the machine config; this module knows nothing of YAML.

use std::net::IpAddr;

use crate::values::{Cidr, HostnamePolicy, RouteSpec, StaticHost};

/// The loopback link. It has addresses of services, and nobody reaches the machine over it.
pub(super) const LOOPBACK: &str = "lo";

/// The whole network. The default asks for DHCP on the first link that has a carrier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkSpec {
    /// Settings of single links. Empty, or without any addressing: DHCP on the first link with a carrier.
    pub links: Vec<LinkSpec>,
    /// Resolvers that replace those from DHCP.
    pub nameservers: Vec<IpAddr>,
    /// Search domains that replace those from DHCP.
    pub search_domains: Vec<String>,
    /// The source of the hostname.
    pub hostname: HostnamePolicy,
    /// Additional lines for /etc/hosts.
    pub hosts: Vec<StaticHost>,
}

impl NetworkSpec {
    /// Returns whether the choice of links is automatic: no link but `lo` has addresses or DHCP.
    pub fn is_automatic(&self) -> bool {
        !self.links.iter().any(LinkSpec::is_addressed)
    }
}

/// The desired state of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// The kernel's name for it, for example `eth0`.
    pub name: String,
    /// Whether to bring it up; false only if the config says so.
    pub up: bool,
    /// Largest packet in bytes. None keeps the driver's value or the one from DHCP.
    pub mtu: Option<u32>,
    /// Static addresses.
    pub addresses: Vec<Cidr>,
    /// Static routes.
    pub routes: Vec<RouteSpec>,
    /// Settings of DHCPv4; none turns it off.
    pub dhcp: Option<DhcpSpec>,
}

impl LinkSpec {
    /// Creates the settings of a link that is brought up and has no addresses.
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

    /// Returns whether the machine may be reached over this link: it has addresses or DHCP, and is not `lo`.
    pub fn is_addressed(&self) -> bool {
        self.name != LOOPBACK && (self.dhcp.is_some() || !self.addresses.is_empty())
    }
}

/// Settings of DHCPv4 on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpSpec {
    /// Metric of the routes from the lease. Where it is taken, a route gets the next one.
    pub route_metric: u32,
    /// Whether to ignore the hostname of the lease.
    pub ignore_hostname: bool,
    /// Whether to ignore the routes of the lease.
    pub ignore_routes: bool,
}

impl Default for DhcpSpec {
    /// Metric 1024, as in Talos and systemd-networkd. A static route without a metric wins: it has 1024 as well, and the
    /// lease's gives way.
    fn default() -> Self {
        Self {
            route_metric: 1024,
            ignore_hostname: false,
            ignore_routes: false,
        }
    }
}
