//! The addresses by which a cluster knows its node, where the config chooses them.

use std::net::IpAddr;

use crate::config::SubnetRule;

/// Chooses among the machine's addresses: at most one of each family, in the order of the rules. Without a rule that names a subnet to take,
/// all addresses are taken that no other rule leaves out. Addresses that only the machine or its link knows are never taken.
pub fn choose(rules: &[SubnetRule], addresses: &[IpAddr]) -> Vec<IpAddr> {
    let is_left_out = |address: &IpAddr| {
        let mut excluded = rules.iter().filter(|rule| rule.is_excluded);
        is_local(address) || excluded.any(|rule| rule.subnet.contains(*address))
    };
    let here = addresses.iter().filter(|address| !is_left_out(address));
    let here: Vec<IpAddr> = here.copied().collect();
    let taken: Vec<&SubnetRule> = rules.iter().filter(|rule| !rule.is_excluded).collect();
    let in_order: Vec<IpAddr> = match taken.is_empty() {
        true => here,
        false => taken
            .into_iter()
            .flat_map(|rule| here.iter().filter(|it| rule.subnet.contains(**it)))
            .copied()
            .collect(),
    };
    let mut chosen: Vec<IpAddr> = Vec::new();
    for address in in_order {
        if chosen.iter().all(|it| it.is_ipv4() != address.is_ipv4()) {
            chosen.push(address);
        }
    }
    chosen
}

fn is_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rules_choose_one_address_of_each_family() {
        let addresses = [
            "127.0.0.1",
            "10.0.2.15",
            "192.168.7.2",
            "fe80::1",
            "2001:db8::2",
            "fd00::7",
            "192.168.7.3",
        ]
        .map(|text| text.parse().unwrap());
        for (rules, chosen) in [
            (&["192.168.7.0/24"][..], &["192.168.7.2"][..]),
            (&["fd00::/8", "192.168.0.0/16"], &["fd00::7", "192.168.7.2"]),
            (&["192.168.0.0/16", "!192.168.7.2/32"], &["192.168.7.3"]),
            (&["!10.0.0.0/8"], &["192.168.7.2", "2001:db8::2"]),
            (&["127.0.0.0/8", "fe80::/10"], &[]),
            (&["172.16.0.0/12"], &[]),
        ] {
            let rules: Vec<SubnetRule> = rules.iter().map(|it| it.parse().unwrap()).collect();
            let chosen: Vec<IpAddr> = chosen.iter().map(|it| it.parse().unwrap()).collect();
            assert_eq!(choose(&rules, &addresses), chosen, "{rules:?}");
        }
    }
}
