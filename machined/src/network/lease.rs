//! A DHCPv4 lease as machined keeps it: checked, serializable, and with times that stay valid over a soft upgrade.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use mozim::DhcpV4Lease;
use serde::{Deserialize, Serialize};

use crate::values::Cidr;

/// Seconds until an inherited lease is confirmed with its server (RENEWING, by unicast).
const CONFIRM_BY_UNICAST: u32 = 1;
/// Seconds until it is confirmed with any server (REBINDING, by broadcast) if there was no answer.
const CONFIRM_BY_BROADCAST: u32 = 3;

/// A lease that a DHCPv4 server has given to a link.
///
/// Times are seconds of CLOCK_BOOTTIME: the kernel's clock goes on over a change of generations, and it cannot be set. A lease must not
/// be kept over a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The link's name.
    pub link: String,
    /// The link's hardware address when the lease was given, `xx:xx:…`.
    pub mac: String,
    /// Our address.
    pub address: Cidr,
    /// The server that gave it and that renews it.
    pub server: Ipv4Addr,
    /// Routers; ignored if there are classless routes (RFC 3442).
    pub gateways: Vec<Ipv4Addr>,
    /// Classless routes: destinations and their routers.
    pub classless_routes: Vec<(Cidr, Ipv4Addr)>,
    /// DNS servers.
    pub resolvers: Vec<Ipv4Addr>,
    /// The domain, for searches and the full hostname.
    pub domain: Option<String>,
    /// NTP servers.
    pub time_servers: Vec<Ipv4Addr>,
    /// The hostname that the server suggests, unchecked.
    pub hostname: Option<String>,
    /// Largest packet in bytes, unchecked.
    pub mtu: Option<u16>,
    /// Time of the lease or of its last renewal, in seconds of CLOCK_BOOTTIME.
    pub obtained: u64,
    /// Seconds after `obtained` at which to renew from the same server (T1).
    pub renew_after: u32,
    /// Seconds after `obtained` at which to ask any server (T2).
    pub rebind_after: u32,
    /// Seconds after `obtained` at which the lease expires; `u32::MAX` is never.
    pub lifetime: u32,
}

/// Why a reply is no valid lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLease {
    /// The address is loopback, multicast, broadcast or missing.
    #[error("the DHCP server offered {0}, which no host can have; check its pool")]
    Address(Ipv4Addr),
    /// The mask has ones after zeros.
    #[error("the DHCP server sent the subnet mask {0}, which is no mask; check its configuration")]
    Mask(Ipv4Addr),
}

impl Lease {
    /// Checks a server's reply and converts it.
    pub fn from_reply(
        link: &str,
        mac: &str,
        reply: &DhcpV4Lease,
        now: u64,
    ) -> Result<Self, BadLease> {
        let address = reply.yiaddr;
        if address.is_unspecified()
            || address.is_loopback()
            || address.is_multicast()
            || address.is_broadcast()
        {
            return Err(BadLease::Address(address));
        }
        let bits = u32::from(reply.subnet_mask);
        let ones = bits.leading_ones();
        if bits.count_ones() != ones {
            return Err(BadLease::Mask(reply.subnet_mask));
        }
        // Without a mask from the server, no other address is assumed to be on the link.
        let prefix = u8::try_from(ones)
            .ok()
            .filter(|ones| *ones > 0)
            .unwrap_or(32);
        let address = Cidr::new(address.into(), prefix).ok_or(BadLease::Mask(reply.subnet_mask))?;
        let routes = reply.classless_routes.iter().flatten();
        Ok(Self {
            link: link.to_owned(),
            mac: mac.to_owned(),
            address,
            server: reply.srv_id,
            gateways: reply.gateways.clone().unwrap_or_default(),
            classless_routes: routes
                .filter_map(|route| {
                    Some((
                        Cidr::new(route.destination.into(), route.prefix_length)?,
                        route.router,
                    ))
                })
                .collect(),
            resolvers: reply.dns_srvs.clone().unwrap_or_default(),
            domain: reply.domain_name.clone(),
            time_servers: reply.ntp_srvs.clone().unwrap_or_default(),
            hostname: reply.host_name.clone(),
            mtu: reply.mtu,
            obtained: now,
            renew_after: reply.t1_sec,
            rebind_after: reply.t2_sec,
            lifetime: reply.lease_time_sec,
        })
    }

    /// Returns the destinations and routers to use: the classless ones, else the first router as the default.
    pub fn routes(&self) -> Vec<(Cidr, Ipv4Addr)> {
        if !self.classless_routes.is_empty() {
            return self.classless_routes.clone();
        }
        let everything = Cidr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        everything
            .zip(self.gateways.first().copied())
            .into_iter()
            .collect()
    }

    /// Returns the time until the lease expires, seen from `now`; none if it never does.
    pub fn remaining(&self, now: u64) -> Option<Duration> {
        let end = self.obtained.saturating_add(u64::from(self.lifetime));
        (self.lifetime != u32::MAX).then(|| Duration::from_secs(end.saturating_sub(now)))
    }

    /// Returns whether the lease has expired at `now`. A lease from the future is from another boot and counts as expired.
    pub fn is_over(&self, now: u64) -> bool {
        self.obtained > now || self.remaining(now).is_some_and(|left| left.is_zero())
    }

    /// Converts the lease for mozim so that it is confirmed soon: as if just given, with T1 and T2 a few seconds away.
    pub(super) fn to_be_confirmed(&self, now: u64) -> DhcpV4Lease {
        let left = self
            .remaining(now)
            .map_or(u64::from(u32::MAX), |left| left.as_secs());
        // mozim accepts only leases with T1 < T2 < end.
        let left = u32::try_from(left)
            .unwrap_or(u32::MAX)
            .max(CONFIRM_BY_BROADCAST + 1);
        let mut lease = DhcpV4Lease::default();
        if let IpAddr::V4(address) = self.address.address() {
            lease.yiaddr = address;
        }
        lease.srv_id = self.server;
        lease.siaddr = self.server;
        lease.t1_sec = CONFIRM_BY_UNICAST;
        lease.t2_sec = CONFIRM_BY_BROADCAST;
        lease.lease_time_sec = left;
        lease
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn reply() -> DhcpV4Lease {
        let mut reply = DhcpV4Lease::default();
        reply.yiaddr = Ipv4Addr::new(192, 0, 2, 7);
        reply.subnet_mask = Ipv4Addr::new(255, 255, 255, 0);
        reply.srv_id = Ipv4Addr::new(192, 0, 2, 1);
        reply.gateways = Some(vec![
            Ipv4Addr::new(192, 0, 2, 1),
            Ipv4Addr::new(192, 0, 2, 2),
        ]);
        (reply.t1_sec, reply.t2_sec, reply.lease_time_sec) = (50, 87, 100);
        reply
    }

    fn lease() -> Lease {
        Lease::from_reply("eth0", "52:54:00:00:00:02", &reply(), 1000).unwrap()
    }

    #[test]
    fn replies_become_leases() {
        let lease = lease();
        assert_eq!(lease.address.to_string(), "192.0.2.7/24");
        assert_eq!(
            lease.routes(),
            [("0.0.0.0/0".parse().unwrap(), Ipv4Addr::new(192, 0, 2, 1))]
        );
        let json = serde_json::to_string(&lease).unwrap();
        assert_eq!(
            serde_json::from_str::<Lease>(&json).unwrap(),
            lease,
            "the next generation reads the same"
        );
    }

    #[test]
    fn hostile_replies_are_refused() {
        for address in [
            [0, 0, 0, 0],
            [127, 0, 0, 1],
            [224, 0, 0, 1],
            [255, 255, 255, 255],
        ] {
            let mut bad = reply();
            bad.yiaddr = address.into();
            assert!(
                Lease::from_reply("eth0", "", &bad, 0).is_err(),
                "{address:?}"
            );
        }
        let mut bad = reply();
        bad.subnet_mask = Ipv4Addr::new(255, 0, 255, 0);
        assert!(
            Lease::from_reply("eth0", "", &bad, 0)
                .unwrap_err()
                .to_string()
                .contains("255.0.255.0")
        );
        let mut bare = reply();
        bare.subnet_mask = Ipv4Addr::UNSPECIFIED;
        assert_eq!(
            Lease::from_reply("eth0", "", &bare, 0)
                .unwrap()
                .address
                .prefix(),
            32
        );
    }

    #[test]
    fn leases_end() {
        let mut lease = lease();
        assert_eq!(lease.remaining(1040), Some(Duration::from_secs(60)));
        assert!(!lease.is_over(1099));
        assert!(lease.is_over(1100));
        assert!(
            lease.is_over(999),
            "CLOCK_BOOTTIME never goes back within one boot"
        );
        lease.lifetime = u32::MAX;
        assert_eq!(lease.remaining(u64::MAX), None);
        assert!(!lease.is_over(u64::MAX));
    }

    #[test]
    fn an_inherited_lease_is_confirmed_soon_and_ends_when_it_did() {
        let raw = lease().to_be_confirmed(1040);
        assert_eq!((raw.t1_sec, raw.t2_sec, raw.lease_time_sec), (1, 3, 60));
        let mut almost_over = lease();
        almost_over.lifetime = 41;
        let raw = almost_over.to_be_confirmed(1040);
        assert!(
            raw.t1_sec < raw.t2_sec && raw.t2_sec < raw.lease_time_sec,
            "{raw:?}"
        );
    }
}
