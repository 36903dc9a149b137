//! Parts of a machine's network as its config describes them.

use std::net::IpAddr;

use crate::{Cidr, Hostname, MachineName};

/// The source of the host name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HostnamePolicy {
    /// This name, even if DHCP offers another one.
    Fixed(MachineName),
    /// The name from DHCP, else one made from the machine's identity, the same on every boot.
    #[default]
    Stable,
    /// The name from DHCP, else `localhost`.
    Off,
}

/// A route over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// The destination; `None` is the default route of the gateway's family.
    pub destination: Option<Cidr>,
    /// The next hop; `None` for a destination that is directly on the link.
    pub gateway: Option<IpAddr>,
    /// The source address of packets.
    pub source: Option<IpAddr>,
    /// The priority: lower comes first; `None` is 1024.
    pub metric: Option<u32>,
}

/// An entry of /etc/hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticHost {
    /// The address.
    pub address: IpAddr,
    /// Its names.
    pub hostnames: Vec<Hostname>,
}
