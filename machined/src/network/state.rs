//! What the kernel has: plain values, so that a diff needs no kernel.

use std::net::IpAddr;

use crate::values::Cidr;

/// Links, addresses and main-table routes as read in one go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelState {
    /// In the order of their index.
    pub links: Vec<Link>,
    /// Of both families.
    pub addresses: Vec<Address>,
    /// Unicast routes of the main table.
    pub routes: Vec<Route>,
}

impl KernelState {
    /// The link of this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The name of the link with this index.
    pub fn name_of(&self, index: u32) -> &str {
        self.links
            .iter()
            .find(|link| link.index == index)
            .map_or("?", |link| &link.name)
    }
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number.
    pub index: u32,
    /// The kernel's name.
    pub name: String,
    /// Hardware address; empty when it has none.
    pub mac: Vec<u8>,
    /// Administratively up.
    pub up: bool,
    /// Something is plugged in.
    pub carrier: bool,
    /// In bytes.
    pub mtu: u32,
    /// `veth`, `bridge`, …; none for hardware.
    pub kind: Option<String>,
    /// Whether it is `lo` or a loopback like it.
    pub loopback: bool,
    /// Whether it speaks Ethernet.
    pub ethernet: bool,
}

impl Link {
    /// A network card, as opposed to `lo` and what software made.
    pub fn is_hardware(&self) -> bool {
        self.ethernet && self.kind.is_none() && !self.loopback
    }

    /// `52:54:00:12:34:56`.
    pub fn mac_text(&self) -> String {
        mac_text(&self.mac)
    }
}

/// A hardware address as people write it: `52:54:00:12:34:56`.
pub fn mac_text(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// The bytes of such a text.
pub fn mac_bytes(text: &str) -> Vec<u8> {
    let bytes = text.split(':');
    bytes
        .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect()
}

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The link's index.
    pub index: u32,
    /// Address and prefix.
    pub cidr: Cidr,
    /// Of global scope, as opposed to link-local and host.
    pub global: bool,
    /// Without a lifetime: somebody configured it, as opposed to what router advertisements bring.
    pub permanent: bool,
}

/// A unicast route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The link's index.
    pub index: u32,
    /// Where to, host bits cleared.
    pub destination: Cidr,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// Lower wins.
    pub metric: u32,
    /// Made by the kernel itself: connected networks and router advertisements.
    pub automatic: bool,
}
