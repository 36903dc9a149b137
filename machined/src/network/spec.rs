//! What the network shall be: filled from the machine config, knows nothing of YAML.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

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
    pub hosts: Vec<(IpAddr, Vec<String>)>,
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

/// A route over the link that it is listed at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// Where to; none is the default route of the gateway's family.
    pub destination: Option<Cidr>,
    /// The next hop; none for an on-link destination.
    pub gateway: Option<IpAddr>,
    /// The address to send from.
    pub source: Option<IpAddr>,
    /// Lower wins; none is 1024.
    pub metric: Option<u32>,
}

/// Where the hostname comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HostnamePolicy {
    /// This name, whatever DHCP says.
    Fixed(String),
    /// DHCP's, else a generated one that stays the same on this machine.
    #[default]
    Stable,
    /// DHCP's, else `localhost`.
    DhcpOnly,
}

/// An address with the length of its network's prefix, such as `192.0.2.7/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

/// Text that is no address with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address with a prefix length, such as 192.0.2.7/24 or 2001:db8::7/64")]
pub struct CidrError {
    text: String,
}

impl Cidr {
    /// None when the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (prefix <= longest).then_some(Self { address, prefix })
    }

    /// The address as it was written, host bits included.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The length of the prefix in bits.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The same network with the host bits cleared, as the kernel wants destinations.
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        };
        Self { address, ..self }
    }

    /// Whether `address` lies in the network.
    pub fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && Self { address, ..self }.network().address == self.network().address
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        text.split_once('/')
            .filter(|(_, prefix)| prefix.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|(address, prefix)| Self::new(address.parse().ok()?, prefix.parse().ok()?))
            .ok_or_else(|| CidrError {
                text: text.to_owned(),
            })
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;

    fn try_from(text: String) -> Result<Self, CidrError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cidrs_parse_and_refuse() {
        for good in [
            "192.0.2.7/24",
            "0.0.0.0/0",
            "10.0.0.1/32",
            "2001:db8::1/64",
            "::/0",
        ] {
            assert_eq!(good.parse::<Cidr>().unwrap().to_string(), good);
        }
        for bad in [
            "192.0.2.7",
            "192.0.2.7/33",
            "::1/129",
            "192.0.2.7/+8",
            "/24",
            "x/24",
            "1.2.3.4/",
            "1.2.3.4/256",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_lose_their_host_bits() {
        let network = |text: &str| text.parse::<Cidr>().unwrap().network().to_string();
        assert_eq!(network("192.0.2.7/24"), "192.0.2.0/24");
        assert_eq!(network("192.0.2.7/0"), "0.0.0.0/0");
        assert_eq!(network("192.0.2.7/32"), "192.0.2.7/32");
        assert_eq!(network("2001:db8::7/64"), "2001:db8::/64");
        assert_eq!(network("2001:db8::7/0"), "::/0");
        let net: Cidr = "192.0.2.7/24".parse().unwrap();
        assert!(net.contains("192.0.2.200".parse().unwrap()));
        assert!(!net.contains("192.0.3.1".parse().unwrap()));
        assert!(!net.contains("::1".parse().unwrap()));
    }
}
