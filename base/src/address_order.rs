//! The order in which the addresses of a name are tried.

use std::net::SocketAddr;

/// The addresses in the resolver's order, but of IPv4 and IPv6 by turns: if the network has a route of one family that leads nowhere, the
/// other one has its turn soon, and is among the first few where not all are tried.
pub fn by_turns(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = addresses.into_iter().peekable();
    let preferred = addresses.peek().map(SocketAddr::is_ipv4);
    let of_preferred = |address: &SocketAddr| Some(address.is_ipv4()) == preferred;
    let (first, second): (Vec<_>, Vec<_>) = addresses.partition(of_preferred);
    let mut second = second.into_iter();
    let mut all = Vec::new();
    for address in first {
        all.push(address);
        all.extend(second.next());
    }
    all.extend(second);
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_families_have_their_turn() {
        let of = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let (a, b, c) = ("[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1");
        let (x, y) = ("192.0.2.1:1", "192.0.2.2:1");
        for (found, expected) in [
            (vec![a, b, c, x], vec![a, x, b, c]),
            (vec![x, y, a, b], vec![x, a, y, b]),
            (vec![x], vec![x]),
            (vec![], vec![]),
        ] {
            assert_eq!(by_turns(of(&found)), of(&expected));
        }
    }
}
