//! The leases in force: their ends, and the settings of the whole machine that follow from them.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use super::{DhcpSpec, Lease, NetworkSpec, hostname};

/// Limit on the time servers of leases. They are asked one after the other, for seconds each, and a lease has room for 63.
const MOST_TIME_SERVERS: usize = 4;

/// The leases by the names of their links.
pub(super) type Leases = BTreeMap<String, Lease>;

/// Removes the leases that are over at `now`, and returns them. A lease ends by its own time: its link may have no carrier, and so no
/// client that could tell.
pub(super) fn end_over(leases: &mut Leases, now: u64) -> Vec<Lease> {
    let ended = leases.extract_if(.., |_, lease| lease.is_over(now));
    ended.map(|(_, lease)| lease).collect()
}

/// Returns the time until the first of the leases ends; none if none ever does.
pub(super) fn first_end(leases: &Leases, now: u64) -> Option<Duration> {
    leases
        .values()
        .filter_map(|lease| lease.remaining(now))
        .min()
}

/// Returns the leases' resolvers, each once.
pub(super) fn resolvers(leases: &Leases) -> Vec<IpAddr> {
    let all = leases.values().flat_map(|lease| &lease.resolvers);
    each_once(all.map(|resolver| IpAddr::V4(*resolver)))
}

/// Returns the leases' time servers, each once: those that can be one, as they come from the network.
pub(super) fn time_servers(leases: &Leases) -> Vec<IpAddr> {
    let all = leases.values().flat_map(|lease| &lease.time_servers);
    let usable = all.filter(|server| {
        !(server.is_unspecified()
            || server.is_loopback()
            || server.is_multicast()
            || server.is_broadcast())
    });
    let mut servers = each_once(usable.map(|server| IpAddr::V4(*server)));
    servers.truncate(MOST_TIME_SERVERS);
    servers
}

/// Returns the leases' domains that are valid: a domain comes from the network and ends up in a file that other programs parse.
pub(super) fn domains(leases: &Leases) -> Vec<String> {
    let domains = leases
        .values()
        .filter_map(|lease| lease.domain.as_deref())
        .map(|domain| domain.trim_end_matches('.'));
    domains
        .filter(|domain| hostname::is_valid(domain))
        .map(str::to_owned)
        .collect()
}

/// Returns the first hostname that a lease suggests on a link whose settings listen to it.
pub(super) fn hostname<'a>(
    leases: &'a Leases,
    dhcp: &BTreeMap<String, DhcpSpec>,
) -> Option<&'a str> {
    leases.iter().find_map(|(link, lease)| {
        let listens = dhcp.get(link).is_some_and(|dhcp| !dhcp.ignore_hostname);
        lease.hostname.as_deref().filter(|_| listens)
    })
}

/// Whether a lease that is to come may name the machine: that of a link whose settings listen to it, and in an automatic network that of the
/// first link with a carrier, which may not have one yet.
pub(super) fn may_name(
    spec: &NetworkSpec,
    dhcp: &BTreeMap<String, DhcpSpec>,
    leases: &Leases,
) -> bool {
    let mut dhcp_links = dhcp.iter();
    let is_to_come =
        dhcp_links.any(|(link, settings)| !settings.ignore_hostname && !leases.contains_key(link));
    is_to_come || (spec.is_automatic() && dhcp.is_empty())
}

/// Returns the links that DHCP is to give an address, and that have no lease.
pub(super) fn without(dhcp: &BTreeMap<String, DhcpSpec>, leases: &Leases) -> Vec<String> {
    let without = dhcp.keys().filter(|link| !leases.contains_key(*link));
    without.cloned().collect()
}

fn each_once(all: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for address in all {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::network::{
        CleanupPolicy, KernelState, Link, LinkSpec, Ours, desired, dhcp_links, plan,
    };

    /// A lease of 3,600 s, from second 100 on.
    fn lease(link: &str) -> Lease {
        let text = r#"{"link":"eth0","mac":"","address":"10.0.2.15/24","server":"10.0.2.2","gateways":["10.0.2.2"],
            "classless_routes":[],"resolvers":[],"domain":null,"time_servers":[],"hostname":null,"mtu":null,
            "obtained":100,"renew_after":1800,"rebind_after":3150,"lifetime":3600}"#;
        Lease {
            link: link.to_owned(),
            ..serde_json::from_str(text).unwrap()
        }
    }

    fn leases(all: impl IntoIterator<Item = Lease>) -> Leases {
        let named = all.into_iter().map(|lease| (lease.link.clone(), lease));
        named.collect()
    }

    /// A network card that is up.
    fn card(index: u32, name: &str, carrier: bool) -> Link {
        Link {
            index,
            name: name.to_owned(),
            mac: Vec::new(),
            up: true,
            carrier,
            mtu: 1500,
            kind: None,
            loopback: false,
            ethernet: true,
        }
    }

    #[test]
    fn the_first_end_is_waited_for() {
        let mut short = lease("eth1");
        short.lifetime = 60;
        let mut endless = lease("eth2");
        endless.lifetime = u32::MAX;
        assert_eq!(first_end(&leases([]), 100), None);
        assert_eq!(first_end(&leases([endless.clone()]), 100), None);
        let mut all = leases([lease("eth0"), short, endless]);
        assert_eq!(first_end(&all, 130), Some(Duration::from_secs(30)));
        assert_eq!(end_over(&mut all, 159), []);
        let ended = end_over(&mut all, 160);
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].link, "eth1");
        assert_eq!(first_end(&all, 160), Some(Duration::from_secs(3540)));
        assert_eq!(end_over(&mut all, 3700).len(), 1);
        assert_eq!(all.len(), 1, "the endless one is left");
    }

    /// The cable was moved from eth0 to eth1, so no client runs that could tell of the end.
    #[test]
    fn a_lease_without_a_carrier_ends_and_the_other_card_is_chosen() {
        let spec = NetworkSpec::default();
        let kernel = KernelState {
            links: vec![card(2, "eth0", false), card(3, "eth1", true)],
            ..KernelState::default()
        };
        let mut leases = leases([lease("eth0")]);
        let chosen = |leases: &Leases| {
            let dhcp = dhcp_links(&spec, &kernel, Some("eth0"), leases);
            let desired = desired(&spec, &kernel, &dhcp, leases);
            let plan = plan(&desired, &kernel, CleanupPolicy::Keep, &Ours::default());
            let links = dhcp.into_keys().collect::<Vec<_>>().join(" ");
            (links, plan.to_string().contains("10.0.2.15/24"))
        };
        end_over(&mut leases, 3699);
        assert_eq!(chosen(&leases), ("eth0".to_owned(), true));
        end_over(&mut leases, 3700);
        assert_eq!(chosen(&leases), ("eth1".to_owned(), false));
    }

    #[test]
    fn a_lease_that_is_to_come_may_name_the_machine() {
        let automatic = NetworkSpec::default();
        let of_config = NetworkSpec {
            links: vec![LinkSpec {
                dhcp: Some(DhcpSpec::default()),
                ..LinkSpec::new("eth0")
            }],
            ..NetworkSpec::default()
        };
        let listens = |ignore_hostname| DhcpSpec {
            ignore_hostname,
            ..DhcpSpec::default()
        };
        let on = |links: &[(&str, bool)]| {
            let links = links.iter();
            links
                .map(|(link, ignores)| ((*link).to_owned(), listens(*ignores)))
                .collect::<BTreeMap<_, _>>()
        };
        let has = || leases([lease("eth0")]);
        for (spec, dhcp, leases, expected) in [
            // No link has a carrier yet.
            (&automatic, on(&[]), leases([]), true),
            (&automatic, on(&[("eth0", false)]), leases([]), true),
            (&automatic, on(&[("eth0", false)]), has(), false),
            (&of_config, on(&[]), leases([]), false),
            (&of_config, on(&[("eth0", false)]), leases([]), true),
            (&of_config, on(&[("eth0", true)]), leases([]), false),
            (
                &of_config,
                on(&[("eth0", false), ("eth1", false)]),
                has(),
                true,
            ),
        ] {
            let found = may_name(spec, &dhcp, &leases);
            assert_eq!(found, expected, "{dhcp:?} {leases:?}");
        }
    }

    #[test]
    fn time_servers_are_few_and_can_be_some() {
        let mut first = lease("eth0");
        first.time_servers = [
            [0; 4],
            [127, 0, 0, 1],
            [10, 0, 0, 1],
            [255; 4],
            [224, 0, 1, 1],
        ]
        .map(Into::into)
        .into();
        let mut second = lease("eth1");
        second.time_servers = (1..10).map(|last| [10, 0, 0, last].into()).collect();
        let servers = time_servers(&leases([first, second])).into_iter();
        let servers: Vec<String> = servers.map(|server| server.to_string()).collect();
        assert_eq!(servers, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        assert!(time_servers(&leases([lease("eth0")])).is_empty());
    }
}
