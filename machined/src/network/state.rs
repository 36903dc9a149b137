//! The kernel's network state as plain values, so that a diff needs no kernel.

use std::net::IpAddr;

use crate::values::Cidr;

/// Links, addresses and main-table routes as read in one go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelState {
    /// Links, ordered by index.
    pub links: Vec<Link>,
    /// Addresses, IPv4 and IPv6.
    pub addresses: Vec<Address>,
    /// Unicast routes of the main table.
    pub routes: Vec<Route>,
}

impl KernelState {
    /// Returns the link of this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Returns the name of the link with this index.
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
    /// The kernel's index.
    pub index: u32,
    /// The kernel's name.
    pub name: String,
    /// Hardware address; empty if the link has none.
    pub mac: Vec<u8>,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it has a carrier: a cable is plugged in.
    pub carrier: bool,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// `veth`, `bridge`, …; none for hardware.
    pub kind: Option<String>,
    /// Whether it is `lo` or another loopback.
    pub loopback: bool,
    /// Whether it speaks Ethernet.
    pub ethernet: bool,
}

impl Link {
    /// Returns whether it is a network card, as opposed to `lo` and links made by software.
    pub fn is_hardware(&self) -> bool {
        self.ethernet && self.kind.is_none() && !self.loopback
    }

    /// Returns the hardware address as text: `52:54:00:12:34:56`.
    pub fn mac_text(&self) -> String {
        mac_text(&self.mac)
    }
}

/// Formats a hardware address: `52:54:00:12:34:56`.
pub fn mac_text(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// Parses a hardware address in that format.
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
    /// Address and prefix length.
    pub cidr: Cidr,
    /// Whether it has global scope, as opposed to link-local and host.
    pub global: bool,
    /// Whether it has no lifetime: it was configured, as opposed to addresses from router advertisements.
    pub permanent: bool,
}

/// A unicast route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The link's index.
    pub index: u32,
    /// The destination, host bits cleared.
    pub destination: Cidr,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The metric; the lower one wins.
    pub metric: u32,
    /// Whether the kernel made it: for a connected network or from a router advertisement.
    pub automatic: bool,
}
