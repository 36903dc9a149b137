//! Parts of a machine's network as its config describes them.

use std::net::IpAddr;

use crate::{Cidr, Hostname};

/// Where the host name comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HostnamePolicy {
    /// This name, whatever DHCP says.
    Fixed(Hostname),
    /// DHCP's, else one that is made of the machine's identity, the same on every boot.
    #[default]
    Stable,
    /// DHCP's, else `localhost`.
    Off,
}

/// A route over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// Where to; none is the default route of the gateway's family.
    pub destination: Option<Cidr>,
    /// The next hop; none for a destination that is directly on the link.
    pub gateway: Option<IpAddr>,
    /// The address to send from.
    pub source: Option<IpAddr>,
    /// Lower wins; none is 1024.
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
