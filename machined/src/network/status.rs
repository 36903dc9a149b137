//! What the network is: published in a watch channel for the resource store.

use std::net::IpAddr;

use serde::Serialize;

use super::hostname::HostnameOrigin;
use crate::values::Cidr;

/// The state of the network after the last reconciliation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Every link of the kernel.
    pub links: Vec<LinkStatus>,
    /// Every address of global scope.
    pub addresses: Vec<AddressStatus>,
    /// Routes of the main table.
    pub routes: Vec<RouteStatus>,
    /// What /etc/resolv.conf names.
    pub resolvers: Vec<IpAddr>,
    /// What /etc/resolv.conf searches.
    pub search_domains: Vec<String>,
    /// Time servers that DHCP named.
    pub time_servers: Vec<IpAddr>,
    /// The hostname, empty until it is set.
    pub hostname: String,
    /// Where it came from.
    pub hostname_origin: Option<HostnameOrigin>,
    /// There is an address of global scope.
    pub address_ready: bool,
    /// There is a default route.
    pub connectivity_ready: bool,
    /// /run/etc holds resolv.conf, hosts and hostname.
    pub etc_files_ready: bool,
    /// Address and files are there: services that need the network may start.
    pub ready: bool,
    /// What could not be done, one line each.
    pub problems: Vec<String>,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    /// The kernel's name.
    pub name: String,
    /// The kernel's number.
    pub index: u32,
    /// Hardware address, `xx:xx:…`; empty when it has none.
    pub mac: String,
    /// Administratively up.
    pub up: bool,
    /// Something is plugged in.
    pub carrier: bool,
    /// In bytes.
    pub mtu: u32,
    /// `veth`, `bridge`, …; none for hardware.
    pub kind: Option<String>,
}

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressStatus {
    /// The link's name.
    pub link: String,
    /// Address and prefix.
    pub address: Cidr,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// The link's name.
    pub link: String,
    /// Where to; a prefix of 0 is the default route.
    pub destination: Cidr,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// Lower wins.
    pub metric: u32,
}
