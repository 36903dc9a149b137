#![allow(clippy::unwrap_used)]
use std::net::IpAddr;

use super::*;
use crate::network::{Address, DesiredRoute, Link, Route, Step, mac_bytes};
use crate::values::Cidr;

/// Finds a recorded answer of a real kernel by its heading.
fn answer(heading: &str) -> Message {
    let (_, rest) = include_str!("answers.txt")
        .split_once(&format!("= {heading}: "))
        .unwrap();
    let section = rest.split("\n= ").next().unwrap();
    let (kind, hex) = section.split_once('\n').unwrap();
    Message {
        kind: kind.parse().unwrap(),
        body: bytes(hex),
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

#[test]
fn links_of_a_real_kernel() {
    let lo = Link {
        index: 1,
        name: "lo".into(),
        mac: vec![0; 6],
        up: true,
        carrier: true,
        mtu: 65536,
        kind: None,
        loopback: true,
        ethernet: false,
    };
    let eth0 = Link {
        index: 3,
        name: "eth0".into(),
        mac: mac_bytes("02:00:00:00:00:01"),
        mtu: 1500,
        kind: Some("veth".into()),
        loopback: false,
        ethernet: true,
        ..lo.clone()
    };
    let br0 = Link {
        index: 4,
        name: "br0".into(),
        mac: mac_bytes("7a:f0:e7:9b:21:b9"),
        up: false,
        carrier: false,
        kind: Some("bridge".into()),
        ..eth0.clone()
    };
    for (heading, expected) in [("link lo", lo), ("link eth0", eth0), ("link br0", br0)] {
        assert_eq!(link(&answer(heading)).unwrap(), expected, "{heading}");
    }
}

#[test]
fn addresses_of_a_real_kernel() {
    let rows = [
        ("127.0.0.1/8", 1, false),
        ("10.77.0.5/24", 3, true),
        ("::1/128", 1, false),
        ("2001:db8::5/64", 3, true),
        ("fe80::ff:fe00:1/64", 3, false),
    ];
    for (text, index, global) in rows {
        let heading = format!("address {text}");
        let expected = Address {
            index,
            cidr: cidr(text),
            global,
            permanent: true,
        };
        let found = address(&answer(&heading)).unwrap();
        assert_eq!(found, Some(expected), "{heading}");
    }
}

#[test]
fn only_routes_that_machined_acts_on_are_news() {
    let route = |kind, prefix, table, protocol| Message {
        kind,
        body: vec![AF_INET6, prefix, 0, 0, table, protocol, 0, 1, 0, 0, 0, 0],
    };
    let main = libc::RT_TABLE_MAIN;
    let (added, gone) = (libc::RTM_NEWROUTE, libc::RTM_DELROUTE);
    for (message, expected) in [
        // A router's advertisement, and its end.
        (route(added, 0, main, RTPROT_RA), true),
        (route(gone, 0, main, RTPROT_RA), true),
        (route(gone, 24, main, libc::RTPROT_STATIC), true),
        (route(gone, 24, main, RTPROT_DHCP), true),
        // Of a network of containers, of the kernel, of another table.
        (route(added, 26, main, 80), false),
        (route(added, 64, main, libc::RTPROT_KERNEL), false),
        (route(added, 0, 100, libc::RTPROT_STATIC), false),
        (answer("link eth0"), true),
        (answer("address 10.77.0.5/24"), true),
    ] {
        assert_eq!(is_news(&message), expected, "{message:?}");
    }
}

#[test]
fn routes_of_a_real_kernel() {
    let default = Route {
        index: 3,
        destination: cidr("0.0.0.0/0"),
        gateway: ip("10.77.0.1"),
        source: ip("10.77.0.5"),
        metric: 1024,
        automatic: false,
    };
    let of_the_kernel = Route {
        destination: cidr("10.77.0.0/24"),
        gateway: None,
        metric: 0,
        automatic: true,
        ..default.clone()
    };
    let via_ipv6 = Route {
        destination: cidr("203.0.113.0/24"),
        source: None,
        automatic: false,
        ..of_the_kernel.clone()
    };
    let ipv6_of_the_kernel = Route {
        destination: cidr("2001:db8::/64"),
        source: None,
        metric: 256,
        ..of_the_kernel.clone()
    };
    let ipv6_default = Route {
        destination: cidr("::/0"),
        gateway: ip("2001:db8::1"),
        source: None,
        metric: 100,
        ..default.clone()
    };
    let rows = [
        ("default", Some(default)),
        ("of the kernel", Some(of_the_kernel)),
        ("via IPv6", Some(via_ipv6)),
        ("IPv6 of the kernel", Some(ipv6_of_the_kernel)),
        ("IPv6 default", Some(ipv6_default)),
        ("in table 1000", None),
        ("blackhole", None),
        ("with two next hops", None),
        ("local", None),
    ];
    for (heading, expected) in rows {
        let found = route(&answer(&format!("route {heading}"))).unwrap();
        assert_eq!(found, expected, "{heading}");
    }
}

/// Decodes bytes as every kind of object.
fn decode(body: &[u8]) {
    let message = |kind| Message {
        kind,
        body: body.to_vec(),
    };
    // An error is as good as an object: it is not a panic.
    let _ = (
        link(&message(libc::RTM_NEWLINK)),
        address(&message(libc::RTM_NEWADDR)),
        route(&message(libc::RTM_NEWROUTE)),
    );
}

#[test]
fn cut_and_damaged_answers_are_errors_and_never_panics() {
    for heading in ["link eth0", "address 10.77.0.5/24", "route default"] {
        let Message { kind, body } = answer(heading);
        for length in 0..body.len() {
            decode(&body[..length]);
        }
        for place in 0..body.len() {
            for damage in [0, 1, 3, 0x7f, 0xff] {
                let mut body = body.clone();
                body[place] = damage;
                decode(&body);
            }
        }
        // A few bytes less than the last attribute has.
        let cut = Message {
            kind,
            body: body[..body.len() - 2].to_vec(),
        };
        let is_error = match kind {
            libc::RTM_NEWLINK => link(&cut).is_err(),
            libc::RTM_NEWADDR => address(&cut).is_err(),
            _ => route(&cut).is_err(),
        };
        assert!(is_error, "{heading}");
    }
}

#[test]
fn malformed_messages_say_why() {
    let eth0 = "00000100030000004310010000000000";
    let rows = [
        // Nothing at all, and a byte too little.
        (String::new(), "has 0 bytes"),
        (eth0[2..].to_owned(), "less than its ifinfomsg"),
        // An attribute of no length, one longer than the message, one cut off within its length.
        (format!("{eth0}00000300"), "malformed attribute"),
        (format!("{eth0}09000300657468"), "malformed attribute"),
        (format!("{eth0}ffff0300"), "malformed attribute"),
        (format!("{eth0}08"), "malformed attribute"),
        // An MTU of 2 bytes, and the kind of the link longer than its parent.
        (format!("{eth0}06000400dc050000"), "malformed attribute"),
        (format!("{eth0}0800120009000100"), "malformed attribute"),
    ];
    for (hex, expected) in rows {
        let message = Message {
            kind: libc::RTM_NEWLINK,
            body: bytes(&hex),
        };
        let error = link(&message).unwrap_err().to_string();
        assert!(error.contains(expected), "{hex}: {error}");
    }
    let other = link(&answer("route default")).unwrap_err();
    assert_eq!(other.to_string(), "the message has type 24 instead of 16");
}

#[test]
fn addresses_have_4_or_16_bytes() {
    for length in 0..20_u8 {
        let mut body = bytes("0218800003000000");
        body.extend([4 + length, 0, 2, 0]);
        body.extend(vec![7; usize::from(length).next_multiple_of(4)]);
        let message = Message {
            kind: libc::RTM_NEWADDR,
            body,
        };
        let fits = length == 4 || length == 16;
        assert_eq!(address(&message).is_ok(), fits, "{length}");
    }
}

#[test]
fn odd_but_well_formed_messages() {
    let decoded = |hex: &str| {
        let message = Message {
            kind: libc::RTM_NEWADDR,
            body: bytes(hex),
        };
        address(&message).unwrap()
    };
    // Another family, no address, and a prefix that no address of IPv4 has.
    assert_eq!(decoded("1c1880000300000005000200ff000000"), None);
    assert_eq!(decoded("0218800003000000"), None);
    assert_eq!(decoded("02218000030000000800020007070707"), None);
    // The attribute for the flags counts, not the header.
    let dynamic = decoded("0218800003000000080002000a4d00050800080000000000").unwrap();
    assert!(!dynamic.permanent);
    // A link with a name that is not UTF-8, without the zero byte at its end.
    let strange = Message {
        kind: libc::RTM_NEWLINK,
        body: bytes("0000010003000000431001000000000007000300 65ff30 00"),
    };
    assert_eq!(link(&strange).unwrap().name, "e\u{fffd}0");
}

const MAKE: u16 = 0x0605;
const REMOVE: u16 = 0x0005;

fn assert_request(step: &Step, flags: u16, kind: u16, hex: &str) {
    let expected = Request {
        flags,
        message: Message {
            kind,
            body: bytes(hex),
        },
    };
    assert_eq!(request(step), expected, "{step}");
}

#[test]
fn requests_about_links() {
    let (name, index) = (String::from("eth0"), 3);
    let set_up = |up| Step::SetUp {
        name: name.clone(),
        index,
        up,
    };
    let up = "00000000030000000100000001000000";
    assert_request(&set_up(true), MAKE, libc::RTM_SETLINK, up);
    let down = "00000000030000000000000001000000";
    assert_request(&set_up(false), MAKE, libc::RTM_SETLINK, down);
    let set_mtu = Step::SetMtu {
        name: name.clone(),
        index,
        mtu: 9000,
    };
    let mtu = "00000000030000000000000000000000 0800040028230000";
    assert_request(&set_mtu, MAKE, libc::RTM_SETLINK, mtu);
    let remove = Step::RemoveLink { name, index };
    let gone = "00000000030000000000000000000000";
    assert_request(&remove, REMOVE, libc::RTM_DELLINK, gone);
}

#[test]
fn requests_about_addresses() {
    let rows = [
        (
            "10.77.0.5/24",
            "0218000003000000 080001000a4d0005 080002000a4d0005 080004000a4d00ff",
        ),
        // Two addresses have no broadcast; a network of all addresses has one.
        (
            "10.77.0.5/31",
            "021f000003000000 080001000a4d0005 080002000a4d0005",
        ),
        (
            "10.77.0.5/0",
            "0200000003000000 080001000a4d0005 080002000a4d0005 08000400ffffffff",
        ),
        ("224.0.0.5/24", "0218000003000000"),
        (
            "2001:db8::5/64",
            "0a40000003000000 1400010020010db8000000000000000000000005 1400020020010db8000000000000000000000005",
        ),
    ];
    for (text, hex) in rows {
        let (name, index, cidr) = (String::from("eth0"), 3, cidr(text));
        let add = Step::AddAddress {
            name: name.clone(),
            index,
            cidr,
        };
        assert_request(&add, MAKE, libc::RTM_NEWADDR, hex);
        let remove = Step::RemoveAddress { name, index, cidr };
        assert_request(&remove, REMOVE, libc::RTM_DELADDR, hex);
    }
}

#[test]
fn requests_about_routes() {
    let default = DesiredRoute {
        destination: cidr("0.0.0.0/0"),
        gateway: ip("10.77.0.1"),
        source: ip("10.77.0.5"),
        metric: 1024,
        onlink: true,
        from_dhcp: true,
    };
    let on_the_link = DesiredRoute {
        destination: cidr("203.0.113.0/24"),
        gateway: None,
        source: None,
        metric: 0,
        onlink: false,
        from_dhcp: false,
    };
    let ipv6 = DesiredRoute {
        destination: cidr("2001:db8:1::/48"),
        gateway: ip("2001:db8::1"),
        source: ip("2001:db8::5"),
        metric: 100,
        ..on_the_link.clone()
    };
    let rows = [
        (
            default,
            "02000000fe10000104000000 0800040003000000 0800060000040000 0800010000000000 080005000a4d0001 080007000a4d0005",
        ),
        (
            on_the_link,
            "02180000fe04fd0100000000 0800040003000000 0800060000000000 08000100cb007100",
        ),
        (
            ipv6,
            "0a300000fe04000100000000 0800040003000000 0800060064000000 1400010020010db8000100000000000000000000
             1400050020010db8000000000000000000000001 1400070020010db8000000000000000000000005",
        ),
    ];
    for (route, hex) in rows {
        let (name, index) = (String::from("eth0"), 3);
        let add = Step::AddRoute { name, index, route };
        assert_request(&add, MAKE, libc::RTM_NEWROUTE, hex);
    }
    let remove = Step::RemoveRoute {
        name: "eth0".into(),
        route: route(&answer("route default")).unwrap().unwrap(),
    };
    let gone = "02000000fe00ff0100000000 0800040003000000 0800060000040000 0800010000000000 080005000a4d0001";
    assert_request(&remove, REMOVE, libc::RTM_DELROUTE, gone);
}

#[test]
fn requests_for_all() {
    let dump = |kind, hex: &str| Request {
        flags: 0x0301,
        message: Message {
            kind,
            body: bytes(hex),
        },
    };
    assert_eq!(all_links(), dump(libc::RTM_GETLINK, &"00".repeat(16)));
    assert_eq!(all_addresses(), dump(libc::RTM_GETADDR, &"00".repeat(8)));
    let routes = |family: &str| dump(libc::RTM_GETROUTE, &(family.to_owned() + &"00".repeat(11)));
    assert_eq!(all_routes(), [routes("02"), routes("0a")]);
}
