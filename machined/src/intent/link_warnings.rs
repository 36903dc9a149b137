//! Warnings of a config that does not fit the machine's links, before it puts the machine out of reach.

use crate::network::{LinkStatus, NetworkSpec, NetworkStatus};

/// Limit on the links that a warning names.
const MOST_NAMED: usize = 5;

/// Returns warnings of the network that a config asks for, on a machine whose network is `now`.
pub fn link_warnings(spec: &NetworkSpec, now: &NetworkStatus) -> Vec<String> {
    // Without any link, not even `lo`, the kernel has not been asked yet.
    if spec.is_automatic() || now.links.is_empty() {
        return Vec::new();
    }
    let warnings = [
        absent_links(spec, now),
        left_out(spec, now),
        no_name_server(spec, now),
    ];
    warnings.into_iter().flatten().collect()
}

/// Names the links that are to have addresses and are not there.
fn absent_links(spec: &NetworkSpec, now: &NetworkStatus) -> Option<String> {
    let is_there = |name: &str| now.links.iter().any(|link| link.name == name);
    let addressed = spec.links.iter().filter(|link| link.is_addressed());
    let names = addressed.map(|link| link.name.as_str());
    let absent = listed(names.filter(|name| !is_there(name)))?;
    let cards = now.links.iter().filter(|link| is_card(link));
    let cards = listed(cards.map(|card| card.name.as_str()));
    Some(format!(
        "the config gives addresses to links that the machine does not have: {absent}; its network cards: {}",
        cards.as_deref().unwrap_or("none")
    ))
}

/// Names the cards that lose their addresses because the config gives some to other links alone.
fn left_out(spec: &NetworkSpec, now: &NetworkStatus) -> Option<String> {
    let is_addressed = |link: &LinkStatus| {
        let mut of_spec = spec.links.iter();
        of_spec.any(|it| it.name == link.name && it.is_addressed())
    };
    // Otherwise DHCP goes on.
    if !now.links.iter().any(is_addressed) {
        return None;
    }
    let has_address = |link: &LinkStatus| {
        let mut addresses = now.addresses.iter();
        addresses.any(|it| it.link == link.name && it.address.address().is_ipv4())
    };
    let cards = now.links.iter();
    let cards = cards.filter(|link| is_card(link) && has_address(link) && !is_addressed(link));
    let names = listed(cards.map(|card| card.name.as_str()))?;
    Some(format!(
        "{names}: the machine gives no address to this link any more; a config that gives addresses to one link has to name all others that are to have some, with a DHCPv4Config for example"
    ))
}

/// Tells that the machine loses the name servers that it has from DHCP.
fn no_name_server(spec: &NetworkSpec, now: &NetworkStatus) -> Option<String> {
    let has_dhcp = spec.links.iter().any(|link| link.dhcp.is_some());
    let loses_all = spec.nameservers.is_empty() && !has_dhcp && !now.resolvers.is_empty();
    loses_all.then(|| {
        "the config names no name server, and no link has DHCP: the machine will find no names, such as those of registries".to_owned()
    })
}

/// Whether it is a network card, as opposed to `lo` and links made by software.
fn is_card(link: &LinkStatus) -> bool {
    link.kind.is_none() && link.name != "lo"
}

/// Writes names as a list; none if there are none.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let shown = names.get(..MOST_NAMED).unwrap_or(&names).join(", ");
    match names.len().saturating_sub(MOST_NAMED) {
        0 => (!names.is_empty()).then_some(shown),
        more => Some(format!("{shown} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::network::{AddressStatus, DhcpSpec, LinkSpec};

    /// A machine with two cards, of which the first has an address and a name server by DHCP.
    fn now() -> NetworkStatus {
        let link = |name: &str, kind: Option<&str>| LinkStatus {
            name: name.to_owned(),
            index: 1,
            mac: String::new(),
            up: true,
            carrier: true,
            mtu: 1500,
            kind: kind.map(str::to_owned),
        };
        let address = |link: &str, address: &str| AddressStatus {
            link: link.to_owned(),
            address: address.parse().unwrap(),
        };
        NetworkStatus {
            links: vec![
                link("lo", None),
                link("eth0", None),
                link("eth1", None),
                link("cni0", Some("bridge")),
            ],
            addresses: vec![
                address("eth0", "10.0.2.15/24"),
                address("eth1", "fec0::5/64"),
                address("cni0", "10.88.0.1/16"),
            ],
            resolvers: vec!["10.0.2.3".parse().unwrap()],
            ..NetworkStatus::default()
        }
    }

    fn static_on(link: &str) -> LinkSpec {
        LinkSpec {
            addresses: vec!["192.0.2.9/24".parse().unwrap()],
            ..LinkSpec::new(link)
        }
    }

    fn dhcp_on(link: &str) -> LinkSpec {
        LinkSpec {
            dhcp: Some(DhcpSpec::default()),
            ..LinkSpec::new(link)
        }
    }

    /// The warnings of a config with these links.
    fn of(links: &[LinkSpec]) -> Vec<String> {
        let spec = NetworkSpec {
            links: links.to_vec(),
            ..NetworkSpec::default()
        };
        link_warnings(&spec, &now())
    }

    #[test]
    fn a_link_that_is_not_there_is_named_beside_the_cards() {
        let warnings = of(&[dhcp_on("enp1s0")]);
        let expected = "does not have: enp1s0; its network cards: eth0, eth1";
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with(expected), "{warnings:?}");
    }

    #[test]
    fn a_card_that_the_config_leaves_out_is_named() {
        let warnings = of(&[dhcp_on("eth1")]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("eth0: "), "{warnings:?}");
    }

    #[test]
    fn a_config_without_name_servers_takes_those_of_dhcp_away() {
        let warnings = of(&[static_on("eth0")]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("no name server"), "{warnings:?}");
    }

    #[test]
    fn what_keeps_the_machine_in_reach_has_no_warning() {
        for links in [
            vec![],
            vec![LinkSpec::new("eth7"), static_on("lo")],
            vec![dhcp_on("eth0"), static_on("eth1")],
        ] {
            assert_eq!(of(&links), Vec::<String>::new());
        }
        let unread = NetworkStatus::default();
        let spec = NetworkSpec {
            links: vec![static_on("eth0")],
            ..NetworkSpec::default()
        };
        assert!(link_warnings(&spec, &unread).is_empty());
    }
}
