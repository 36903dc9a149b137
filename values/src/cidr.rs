//! An address with the length of its network's prefix.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// An address with the length of its network's prefix, for example `192.0.2.7/24`. The address keeps its host part.
///
/// Not `ipnet`'s own type, because that one accepts `010.0.0.1/8` as well, which other programs read as octal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

/// The text is not an address with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not an address with a prefix such as `192.168.2.10/24` or `2001:db8::7/64`")]
pub struct NotACidr;

impl Cidr {
    /// `None` if the prefix is longer than the address.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        IpNet::new(address, prefix).ok().map(Self)
    }

    /// A single address: the prefix covers all bits.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// The address as it was written, host part included.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// The length of the prefix in bits.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.0.prefix_len()
    }

    /// The same network without the host part, as the kernel expects destinations.
    #[must_use]
    pub fn network(self) -> Self {
        Self(self.0.trunc())
    }

    /// The first address after that of the network itself.
    #[must_use]
    pub fn first(self) -> IpAddr {
        match self.network().address() {
            IpAddr::V4(address) => IpAddr::V4(u32::from(address).saturating_add(1).into()),
            IpAddr::V6(address) => IpAddr::V6(u128::from(address).saturating_add(1).into()),
        }
    }

    /// Whether `address` lies in the network.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Cidr {
    type Err = NotACidr;

    fn from_str(text: &str) -> Result<Self, NotACidr> {
        text.split_once('/')
            .filter(|(_, prefix)| prefix.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|(address, prefix)| Self::new(address.parse().ok()?, prefix.parse().ok()?))
            .ok_or(NotACidr)
    }
}

impl TryFrom<String> for Cidr {
    type Error = NotACidr;

    fn try_from(text: String) -> Result<Self, NotACidr> {
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
            "",
            "192.0.2.7",
            "192.0.2.7/33",
            "::1/129",
            "192.0.2.7/+8",
            "/24",
            "x/24",
            "10.0.0/8",
            "010.0.0.1/8",
            "1.2.3.4/",
            "1.2.3.4/256",
            "1.2.3.4/8/8",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_lose_their_host_part() {
        let network = |text: &str| text.parse::<Cidr>().unwrap().network().to_string();
        assert_eq!(network("192.0.2.7/24"), "192.0.2.0/24");
        assert_eq!(network("192.0.2.7/0"), "0.0.0.0/0");
        assert_eq!(network("192.0.2.7/32"), "192.0.2.7/32");
        assert_eq!(network("2001:db8::7/64"), "2001:db8::/64");
        assert_eq!(network("2001:db8::7/0"), "::/0");
        assert_eq!(
            Cidr::host("192.0.2.7".parse().unwrap()).to_string(),
            "192.0.2.7/32"
        );
    }

    #[test]
    fn networks_contain_their_addresses() {
        let net: Cidr = "192.0.2.7/24".parse().unwrap();
        assert!(net.contains("192.0.2.200".parse().unwrap()));
        assert!(!net.contains("192.0.3.1".parse().unwrap()));
        assert!(!net.contains("::1".parse().unwrap()));
    }
}
