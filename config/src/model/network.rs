//! The network as the config describes it.

use super::{Cidr, Hostname, LinkName, Nameserver, RouteSpec, StaticHost};

/// Links, addresses, names. If all are empty: DHCP on the first link with a carrier.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// Links with settings of their own, by name, in the order of the file.
    pub links: Vec<Link>,
    /// Links with DHCPv4, in the order of the file.
    pub dhcp4: Vec<Dhcp4>,
    /// Name servers, in order; empty leaves the choice to DHCP.
    pub nameservers: Vec<Nameserver>,
    /// Domains that are appended to short names in lookups.
    pub search_domains: Vec<Hostname>,
    /// Entries of /etc/hosts.
    pub static_hosts: Vec<StaticHost>,
}

/// A link's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: LinkName,
    /// Whether it should be up.
    pub up: bool,
    /// Its MTU; `None` leaves it unchanged.
    pub mtu: Option<u32>,
    /// Its addresses.
    pub addresses: Vec<LinkAddress>,
    /// Routes over it.
    pub routes: Vec<RouteSpec>,
}

/// An address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddress {
    /// The address with its network's prefix.
    pub address: Cidr,
    /// Priority (metric) of the network's own route; `None` is the kernel's default.
    pub route_priority: Option<u32>,
}

/// DHCPv4 on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dhcp4 {
    /// The link.
    pub link: LinkName,
    /// Metric of the routes from DHCP; `None` is the default, 1024.
    pub route_metric: Option<u32>,
    /// Ignore the host name from DHCP.
    pub ignore_hostname: bool,
    /// Ignore the routes from DHCP.
    pub ignore_routes: bool,
}
