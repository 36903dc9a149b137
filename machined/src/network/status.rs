//! The state of the network, published in a watch channel for the resource store.

use std::net::IpAddr;

use serde::Serialize;
use tracing::warn;

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
    /// The resolvers in /etc/resolv.conf.
    pub resolvers: Vec<IpAddr>,
    /// The search domains in /etc/resolv.conf.
    pub search_domains: Vec<String>,
    /// Time servers from DHCP.
    pub time_servers: Vec<IpAddr>,
    /// The hostname, empty until it is set.
    pub hostname: String,
    /// The hostname's origin.
    pub hostname_origin: Option<HostnameOrigin>,
    /// Links that DHCP is to give an address, and that have none from it yet.
    pub without_lease: Vec<String>,
    /// Whether a lease that is to come may still name the machine.
    pub lease_may_name: bool,
    /// Whether there is an address of global scope on another link than `lo`.
    pub address_ready: bool,
    /// Whether there is a default route.
    pub connectivity_ready: bool,
    /// Whether /run/etc holds resolv.conf, hosts and hostname.
    pub etc_files_ready: bool,
    /// Whether address and files are there: services that need the network may start.
    pub ready: bool,
    /// Settings that are not in force, because the kernel refuses a step or a file cannot be written: one line each.
    pub problems: Vec<String>,
}

impl NetworkStatus {
    /// Whether the hostname is no stopgap until a lease comes.
    pub fn is_named(&self) -> bool {
        match self.hostname_origin {
            Some(HostnameOrigin::Config | HostnameOrigin::Dhcp) => true,
            Some(HostnameOrigin::Generated | HostnameOrigin::Fallback) => !self.lease_may_name,
            None => false,
        }
    }

    /// Every address of global scope, without its prefix and its link.
    pub fn ip_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|it| it.address.address())
    }

    /// Replaces the problems, with a line in the log for each new one. Returns whether they have changed.
    pub(super) fn replace_problems(&mut self, problems: Vec<String>) -> bool {
        for problem in problems.iter().filter(|it| !self.problems.contains(it)) {
            warn!(problem, "network");
        }
        let changed = self.problems != problems;
        self.problems = problems;
        changed
    }
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    /// The kernel's name.
    pub name: String,
    /// The kernel's index.
    pub index: u32,
    /// Hardware address, `xx:xx:…`; empty if the link has none.
    pub mac: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it has a carrier: a cable is plugged in.
    pub carrier: bool,
    /// Largest packet, in bytes.
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
    /// Address and prefix length.
    pub address: Cidr,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// The link's name.
    pub link: String,
    /// The destination; a prefix length of 0 is the default route.
    pub destination: Cidr,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The metric; the lower one wins.
    pub metric: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_name_is_no_stopgap_once_no_lease_may_name_the_machine() {
        for (origin, lease_may_name, expected) in [
            (Some(HostnameOrigin::Config), true, true),
            (Some(HostnameOrigin::Dhcp), true, true),
            (Some(HostnameOrigin::Generated), true, false),
            (Some(HostnameOrigin::Generated), false, true),
            (Some(HostnameOrigin::Fallback), true, false),
            (Some(HostnameOrigin::Fallback), false, true),
            (None, false, false),
        ] {
            let status = NetworkStatus {
                hostname_origin: origin,
                lease_may_name,
                ..NetworkStatus::default()
            };
            assert_eq!(status.is_named(), expected, "{status:?}");
        }
    }
}
