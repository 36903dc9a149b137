#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use super::*;
use crate::network::{DhcpSpec, Lease, Link, LinkSpec, NetworkSpec, desired, dhcp_links};
use crate::values::RouteSpec;

fn link(index: u32, name: &str, kind: Option<&str>, up: bool, carrier: bool) -> Link {
    Link {
        index,
        name: name.into(),
        mac: vec![0x52, 0x54, 0, 0, 0, u8::try_from(index).unwrap()],
        up,
        carrier,
        mtu: 1500,
        kind: kind.map(Into::into),
        loopback: name == "lo",
        ethernet: name != "lo",
    }
}

fn fresh_kernel() -> KernelState {
    let links = vec![
        link(1, "lo", None, false, false),
        link(2, "eth0", None, false, false),
        link(3, "eth1", None, false, false),
    ];
    KernelState {
        links,
        ..KernelState::default()
    }
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn lease() -> Lease {
    let text = r#"{"link":"eth0","mac":"52:54:00:00:00:02","address":"10.0.2.15/24","server":"10.0.2.2",
        "gateways":["10.0.2.2"],"classless_routes":[],"resolvers":["10.0.2.3"],"domain":null,"time_servers":[],
        "hostname":null,"mtu":null,"obtained":100,"renew_after":1800,"rebind_after":3150,"lifetime":3600}"#;
    serde_json::from_str(text).unwrap()
}

fn steps(
    spec: &NetworkSpec,
    kernel: &KernelState,
    leases: &[Lease],
    cleanup: CleanupPolicy,
    ours: &Ours,
) -> Vec<String> {
    let leases: BTreeMap<_, _> = leases
        .iter()
        .map(|lease| (lease.link.clone(), lease.clone()))
        .collect();
    let dhcp = dhcp_links(spec, kernel, None, &leases);
    let plan = plan(
        &desired(spec, kernel, &dhcp, &leases),
        kernel,
        cleanup,
        ours,
    );
    plan.steps.iter().map(ToString::to_string).collect()
}

/// The kernel after the steps of the first boot: eth0 has its lease.
fn configured_kernel() -> KernelState {
    let mut kernel = fresh_kernel();
    for link in &mut kernel.links {
        link.up = true;
        link.carrier = link.name != "eth1";
    }
    kernel.addresses = vec![
        Address {
            index: 2,
            cidr: cidr("10.0.2.15/24"),
            global: true,
            permanent: true,
        },
        Address {
            index: 2,
            cidr: cidr("fe80::1/64"),
            global: false,
            permanent: true,
        },
        Address {
            index: 2,
            cidr: cidr("fec0::5/64"),
            global: true,
            permanent: false,
        },
    ];
    kernel.routes = vec![
        Route {
            index: 2,
            destination: cidr("10.0.2.0/24"),
            gateway: None,
            source: None,
            metric: 0,
            automatic: true,
        },
        Route {
            index: 2,
            destination: cidr("0.0.0.0/0"),
            gateway: Some("10.0.2.2".parse().unwrap()),
            source: Some("10.0.2.15".parse().unwrap()),
            metric: 1024,
            automatic: false,
        },
    ];
    kernel
}

#[test]
fn a_fresh_boot_brings_links_up_and_then_takes_the_lease() {
    let spec = NetworkSpec::default();
    let mut kernel = fresh_kernel();
    assert_eq!(
        steps(&spec, &kernel, &[], CleanupPolicy::Remove, &Ours::default()),
        ["bring eth0 up", "bring eth1 up", "bring lo up"]
    );
    for link in &mut kernel.links {
        link.up = true;
        link.carrier = true;
    }
    assert_eq!(
        steps(
            &spec,
            &kernel,
            &[lease()],
            CleanupPolicy::Remove,
            &Ours::default()
        ),
        [
            "add 10.0.2.15/24 to eth0",
            "add route 0.0.0.0/0 over eth0 via 10.0.2.2 metric 1024"
        ]
    );
}

#[test]
fn the_next_generation_adopts_what_is_right() {
    let nothing: Vec<String> = Vec::new();
    let spec = NetworkSpec::default();
    assert_eq!(
        steps(
            &spec,
            &configured_kernel(),
            &[lease()],
            CleanupPolicy::Remove,
            &Ours::default()
        ),
        nothing
    );
}

#[test]
fn the_next_generation_removes_what_does_not_belong() {
    let mut kernel = configured_kernel();
    kernel
        .links
        .push(link(9, "br-old", Some("bridge"), true, true));
    kernel
        .links
        .push(link(10, "sit0", Some("sit"), false, false));
    kernel.addresses.push(Address {
        index: 2,
        cidr: cidr("192.0.2.9/32"),
        global: true,
        permanent: true,
    });
    kernel.routes.push(Route {
        index: 3,
        destination: cidr("198.51.100.0/24"),
        gateway: None,
        source: None,
        metric: 5,
        automatic: false,
    });
    let spec = NetworkSpec::default();
    assert_eq!(
        steps(
            &spec,
            &kernel,
            &[lease()],
            CleanupPolicy::Remove,
            &Ours::default()
        ),
        [
            "remove link br-old",
            "remove route 198.51.100.0/24 over eth1 metric 5",
            "remove 192.0.2.9/32 from eth0"
        ]
    );
    let nothing: Vec<String> = Vec::new();
    assert_eq!(
        steps(
            &spec,
            &kernel,
            &[lease()],
            CleanupPolicy::Keep,
            &Ours::default()
        ),
        nothing,
        "while containers run, only our own is touched"
    );
}

#[test]
fn a_lost_lease_takes_its_address_and_route_along() {
    let kernel = configured_kernel();
    let spec = NetworkSpec::default();
    let leases = BTreeMap::from([("eth0".to_owned(), lease())]);
    let dhcp = dhcp_links(&spec, &kernel, None, &leases);
    let mut ours = Ours::default();
    ours.remember(&desired(&spec, &kernel, &dhcp, &leases));
    assert_eq!(
        steps(&spec, &kernel, &[], CleanupPolicy::Keep, &ours),
        [
            "remove route 0.0.0.0/0 over eth0 via 10.0.2.2 metric 1024",
            "remove 10.0.2.15/24 from eth0"
        ]
    );
}

#[test]
fn a_changed_gateway_is_replaced_old_first() {
    let mut changed = lease();
    changed.gateways = vec!["10.0.2.1".parse().unwrap()];
    assert_eq!(
        steps(
            &NetworkSpec::default(),
            &configured_kernel(),
            &[changed],
            CleanupPolicy::Keep,
            &Ours::default()
        ),
        [
            "remove route 0.0.0.0/0 over eth0 via 10.0.2.2 metric 1024",
            "add route 0.0.0.0/0 over eth0 via 10.0.2.1 metric 1024"
        ]
    );
}

#[test]
fn static_config_turns_automatic_dhcp_off() {
    let mut eth1 = LinkSpec::new("eth1");
    eth1.addresses = vec![cidr("192.0.2.7/24")];
    eth1.mtu = Some(9000);
    eth1.routes = vec![RouteSpec {
        destination: None,
        gateway: Some("192.0.2.1".parse().unwrap()),
        source: None,
        metric: None,
    }];
    let spec = NetworkSpec {
        links: vec![eth1, LinkSpec::new("eth7")],
        ..NetworkSpec::default()
    };
    assert_eq!(
        steps(
            &spec,
            &fresh_kernel(),
            &[lease()],
            CleanupPolicy::Remove,
            &Ours::default()
        ),
        [
            "set the MTU of eth1 to 9000",
            "bring eth1 up",
            "add 192.0.2.7/24 to eth1",
            "bring lo up",
            "add route 0.0.0.0/0 over eth1 via 192.0.2.1 metric 1024"
        ],
        "eth0 is not named, so it is not touched; eth7 is not there"
    );
}

/// Services have addresses there, and the machine is reached over its card.
#[test]
fn an_address_of_the_loopback_leaves_automatic_dhcp_on() {
    let mut lo = LinkSpec::new("lo");
    lo.addresses = vec![cidr("10.255.0.1/32")];
    let spec = NetworkSpec {
        links: vec![lo],
        ..NetworkSpec::default()
    };
    let kernel = configured_kernel();
    let planned = steps(
        &spec,
        &kernel,
        &[lease()],
        CleanupPolicy::Remove,
        &Ours::default(),
    );
    assert_eq!(planned, ["add 10.255.0.1/32 to lo"]);
}

#[test]
fn a_link_that_the_config_takes_down_gets_no_dhcp() {
    let mut kernel = configured_kernel();
    kernel.links[2].carrier = true;
    let mut eth0 = LinkSpec::new("eth0");
    eth0.up = false;
    let spec = NetworkSpec {
        links: vec![eth0],
        ..NetworkSpec::default()
    };
    let chosen = dhcp_links(&spec, &kernel, Some("eth0"), &BTreeMap::new());
    assert_eq!(chosen.keys().collect::<Vec<_>>(), ["eth1"]);
}

#[test]
fn automatic_dhcp_stays_with_its_link() {
    let mut kernel = configured_kernel();
    kernel.links[2].carrier = true;
    let spec = NetworkSpec::default();
    let chosen = |kernel: &KernelState, current, leases: &[Lease]| {
        let leases = leases
            .iter()
            .map(|lease| (lease.link.clone(), lease.clone()))
            .collect();
        dhcp_links(&spec, kernel, current, &leases)
            .into_keys()
            .next()
    };
    assert_eq!(chosen(&kernel, None, &[]).as_deref(), Some("eth0"));
    assert_eq!(chosen(&kernel, Some("eth1"), &[]).as_deref(), Some("eth1"));
    kernel.links[1].carrier = false;
    assert_eq!(
        chosen(&kernel, Some("eth0"), &[lease()]).as_deref(),
        Some("eth0"),
        "a loose cable keeps the lease"
    );
    assert_eq!(chosen(&kernel, Some("eth0"), &[]).as_deref(), Some("eth1"));
    kernel.links[2].carrier = false;
    assert_eq!(chosen(&kernel, None, &[]), None);
    kernel
        .links
        .push(link(9, "veth0", Some("veth"), true, true));
    assert_eq!(
        chosen(&kernel, None, &[]),
        None,
        "what software made is no network card"
    );
}

#[test]
fn a_gateway_outside_of_the_address_is_on_the_link() {
    let mut cloud = lease();
    cloud.address = cidr("10.128.0.7/32");
    cloud.classless_routes = vec![
        (cidr("10.128.0.1/32"), "0.0.0.0".parse().unwrap()),
        (cidr("0.0.0.0/0"), "10.128.0.1".parse().unwrap()),
    ];
    cloud.mtu = Some(68);
    let kernel = configured_kernel();
    let leases = BTreeMap::from([("eth0".to_owned(), cloud)]);
    let spec = NetworkSpec::default();
    let desired = desired(
        &spec,
        &kernel,
        &BTreeMap::from([("eth0".into(), DhcpSpec::default())]),
        &leases,
    );
    let eth0 = &desired.links["eth0"];
    assert_eq!(eth0.mtu, None, "a useless MTU is ignored");
    assert_eq!(
        eth0.routes.len(),
        2,
        "classless routes replace the router option"
    );
    assert_eq!(
        (eth0.routes[0].gateway, eth0.routes[0].onlink),
        (None, false)
    );
    assert!(eth0.routes[1].onlink);
}

/// Links that DHCP is to serve, each with the metric of its routes.
fn dhcp_on(links: &[(&str, u32)]) -> NetworkSpec {
    let with_dhcp = |(name, route_metric): &(&str, u32)| LinkSpec {
        dhcp: Some(DhcpSpec {
            route_metric: *route_metric,
            ..DhcpSpec::default()
        }),
        ..LinkSpec::new(*name)
    };
    NetworkSpec {
        links: links.iter().map(with_dhcp).collect(),
        ..NetworkSpec::default()
    }
}

fn route_by(gateway: &str, metric: Option<u32>) -> RouteSpec {
    RouteSpec {
        destination: None,
        gateway: Some(gateway.parse().unwrap()),
        source: None,
        metric,
    }
}

/// Returns the default routes to add where each of these links has a lease.
fn default_routes(spec: &NetworkSpec, leased: &[&str]) -> Vec<String> {
    let leases: Vec<Lease> = leased
        .iter()
        .map(|name| Lease {
            link: (*name).to_owned(),
            ..lease()
        })
        .collect();
    let all = steps(
        spec,
        &fresh_kernel(),
        &leases,
        CleanupPolicy::Remove,
        &Ours::default(),
    );
    all.into_iter()
        .filter_map(|step| Some(step.strip_prefix("add route 0.0.0.0/0 over ")?.to_owned()))
        .collect()
}

#[test]
fn routes_of_two_leases_have_metrics_of_their_own() {
    let spec = dhcp_on(&[("eth1", 1024), ("eth0", 1024)]);
    let first = "eth0 via 10.0.2.2 metric 1024";
    let second = "eth1 via 10.0.2.2 metric 1025";
    assert_eq!(default_routes(&spec, &["eth0", "eth1"]), [first, second]);
    // A lease that comes or goes does not move the other one's route.
    assert_eq!(default_routes(&spec, &["eth1"]), [second]);
    assert_eq!(default_routes(&spec, &["eth0"]), [first]);
    // A link that the config prefers stays preferred, and metrics that differ already are kept.
    let spec = dhcp_on(&[("eth0", 1025), ("eth1", 1024)]);
    assert_eq!(
        default_routes(&spec, &["eth0", "eth1"]),
        [
            "eth0 via 10.0.2.2 metric 1025",
            "eth1 via 10.0.2.2 metric 1024"
        ]
    );
}

#[test]
fn a_route_of_the_config_without_a_metric_wins_over_those_of_leases() {
    let mut spec = dhcp_on(&[("eth0", 1024)]);
    let mut eth1 = LinkSpec::new("eth1");
    eth1.addresses = vec![cidr("192.0.2.7/24")];
    eth1.routes = vec![route_by("192.0.2.1", None)];
    spec.links.push(eth1);
    assert_eq!(
        default_routes(&spec, &["eth0"]),
        [
            "eth0 via 10.0.2.2 metric 1025",
            "eth1 via 192.0.2.1 metric 1024"
        ]
    );
    // A route on a link that is down is not there.
    spec.links[1].up = false;
    assert_eq!(
        default_routes(&spec, &["eth0"]),
        ["eth0 via 10.0.2.2 metric 1024"]
    );
    // On the lease's own link it takes the place of the lease's.
    let mut spec = dhcp_on(&[("eth0", 1024), ("eth1", 1024)]);
    spec.links[0].routes = vec![route_by("10.0.2.1", None)];
    assert_eq!(
        default_routes(&spec, &["eth0", "eth1"]),
        [
            "eth0 via 10.0.2.1 metric 1024",
            "eth1 via 10.0.2.2 metric 1026"
        ]
    );
}

/// To the kernel it is none: the route would come back without it, and never be the one that the plan wants.
#[test]
fn a_gateway_and_a_source_of_zeros_are_none() {
    let zeros = "0.0.0.0".parse().ok();
    let mut eth1 = LinkSpec::new("eth1");
    eth1.addresses = vec![cidr("192.0.2.7/24")];
    eth1.routes = vec![RouteSpec {
        destination: Some(cidr("10.0.0.0/8")),
        gateway: zeros,
        source: zeros,
        metric: None,
    }];
    let spec = NetworkSpec {
        links: vec![eth1],
        ..NetworkSpec::default()
    };
    let wanted = desired(&spec, &fresh_kernel(), &BTreeMap::new(), &BTreeMap::new());
    let routes = &wanted.links["eth1"].routes;
    assert_eq!(routes.len(), 1);
    assert_eq!((routes[0].gateway, routes[0].source), (None, None));
}

/// The kernel makes 1024 of an IPv6 metric of 0: a route that the plan wants with 0 would be missing for ever.
#[test]
fn an_ipv6_metric_of_0_is_none() {
    let mut eth1 = LinkSpec::new("eth1");
    eth1.addresses = vec![cidr("2001:db8::7/64"), cidr("192.0.2.7/24")];
    eth1.routes = vec![
        route_by("2001:db8::1", Some(0)),
        route_by("192.0.2.1", Some(0)),
    ];
    let spec = NetworkSpec {
        links: vec![eth1],
        ..NetworkSpec::default()
    };
    let all = steps(
        &spec,
        &fresh_kernel(),
        &[],
        CleanupPolicy::Remove,
        &Ours::default(),
    );
    let routes: Vec<_> = all.iter().filter(|step| step.contains("route")).collect();
    assert_eq!(
        routes,
        [
            "add route ::/0 over eth1 via 2001:db8::1 metric 1024",
            "add route 0.0.0.0/0 over eth1 via 192.0.2.1 metric 0"
        ]
    );
}

#[test]
fn a_plan_that_does_not_change_is_news_once() {
    let plan_of = |mtu| NetworkPlan {
        steps: vec![Step::SetMtu {
            name: "eth0".to_owned(),
            index: 2,
            mtu,
        }],
    };
    let nothing = NetworkPlan::default();
    let mut last = LastPlan::default();
    assert!(!last.is_news(&nothing));
    assert!(last.is_news(&plan_of(9000)));
    assert!(!last.is_news(&plan_of(9000)), "the kernel has refused it");
    assert!(last.is_news(&plan_of(1400)));
    assert!(!last.is_news(&nothing));
    assert!(last.is_news(&plan_of(1400)), "it was right in between");
}

/// Reconciles once as the network's task does, with a kernel that takes every step, and hands the list over to the next generation.
fn turn(spec: &NetworkSpec, kernel: &mut KernelState, ours: &mut Ours) -> Vec<String> {
    let desired = desired(spec, kernel, &BTreeMap::new(), &BTreeMap::new());
    ours.forget_gone(&desired, kernel);
    let plan = plan(&desired, kernel, CleanupPolicy::Keep, ours);
    ours.note_mtus(&plan, kernel);
    for step in &plan.steps {
        take(kernel, step);
    }
    ours.remember(&desired);
    *ours = serde_json::from_str(&serde_json::to_string(ours).unwrap()).unwrap();
    plan.steps.iter().map(ToString::to_string).collect()
}

fn take(kernel: &mut KernelState, step: &Step) {
    match step {
        Step::SetMtu { name, mtu, .. } => {
            let link = kernel.links.iter_mut().find(|link| link.name == *name);
            link.unwrap().mtu = *mtu;
        }
        Step::AddAddress { index, cidr, .. } => kernel.addresses.push(static_address(*index, cidr)),
        Step::RemoveAddress { index, cidr, .. } => {
            let is_it = |it: &Address| it.index == *index && it.cidr == *cidr;
            kernel.addresses.retain(|address| !is_it(address));
        }
        Step::AddRoute { index, route, .. } => kernel.routes.push(Route {
            index: *index,
            destination: route.destination,
            gateway: route.gateway,
            source: route.source,
            metric: route.metric,
            automatic: false,
        }),
        Step::RemoveRoute { route, .. } => kernel.routes.retain(|other| other != route),
        Step::RemoveLink { .. } | Step::SetUp { .. } => panic!("not in these tests: {step}"),
    }
}

fn static_address(index: u32, cidr: &Cidr) -> Address {
    Address {
        index,
        cidr: *cidr,
        global: true,
        permanent: true,
    }
}

fn eth0_with_mtu(mtu: Option<u32>) -> NetworkSpec {
    let eth0 = LinkSpec {
        mtu,
        ..LinkSpec::new("eth0")
    };
    NetworkSpec {
        links: vec![eth0],
        ..NetworkSpec::default()
    }
}

#[test]
fn an_mtu_that_is_not_wanted_any_more_is_set_back() {
    let (mut kernel, mut ours) = (configured_kernel(), Ours::default());
    let unnamed = NetworkSpec::default();
    for (spec, expected) in [
        (eth0_with_mtu(None), None),
        (eth0_with_mtu(Some(9000)), Some(9000)),
        (eth0_with_mtu(Some(9000)), None),
        (eth0_with_mtu(Some(576)), Some(576)),
        (eth0_with_mtu(None), Some(1500)),
        (eth0_with_mtu(None), None),
        (eth0_with_mtu(Some(1400)), Some(1400)),
        (unnamed.clone(), Some(1500)),
        (unnamed.clone(), None),
    ] {
        let expected = expected.map(|mtu: u32| format!("set the MTU of eth0 to {mtu}"));
        let steps = turn(&spec, &mut kernel, &mut ours);
        assert_eq!(steps, Vec::from_iter(expected), "{spec:?}");
    }
    // Another program's MTU stays: nothing of ours is left to set back.
    kernel.links[1].mtu = 1300;
    assert!(turn(&unnamed, &mut kernel, &mut ours).is_empty());
    assert_eq!(ours, Ours::default());
}

/// A link that a module has made, and that is in the config for an address beside those of network cards.
fn with_dummy0() -> (KernelState, NetworkSpec) {
    let mut kernel = fresh_kernel();
    for link in &mut kernel.links {
        link.up = true;
    }
    kernel
        .links
        .push(link(9, "dummy0", Some("dummy"), true, true));
    let dummy0 = LinkSpec {
        mtu: Some(9000),
        addresses: vec![cidr("10.0.0.9/32")],
        routes: vec![RouteSpec {
            destination: Some(cidr("198.51.100.0/24")),
            gateway: None,
            source: None,
            metric: None,
        }],
        ..LinkSpec::new("dummy0")
    };
    let spec = NetworkSpec {
        links: vec![dummy0],
        ..NetworkSpec::default()
    };
    (kernel, spec)
}

#[test]
fn a_virtual_link_that_the_config_drops_loses_all_that_was_set() {
    let ((mut kernel, named), mut ours) = (with_dummy0(), Ours::default());
    let (nothing, dropped): (Vec<String>, _) = (Vec::new(), NetworkSpec::default());
    assert_eq!(
        turn(&named, &mut kernel, &mut ours),
        [
            "set the MTU of dummy0 to 9000",
            "add 10.0.0.9/32 to dummy0",
            "add route 198.51.100.0/24 over dummy0 metric 1024"
        ]
    );
    let of_another = static_address(9, &cidr("10.0.0.10/32"));
    kernel.addresses.push(of_another.clone());
    assert_eq!(
        turn(&dropped, &mut kernel, &mut ours),
        [
            "set the MTU of dummy0 to 1500",
            "remove route 198.51.100.0/24 over dummy0 metric 1024",
            "remove 10.0.0.9/32 from dummy0"
        ]
    );
    assert_eq!(kernel.addresses, [of_another]);
    assert_eq!(turn(&dropped, &mut kernel, &mut ours), nothing);
    assert_eq!(ours, Ours::default());

    // The same address, but from another program now.
    let address = static_address(9, &cidr("10.0.0.9/32"));
    kernel.addresses.push(address);
    assert_eq!(turn(&dropped, &mut kernel, &mut ours), nothing);
    // The list of a version that noted no MTUs.
    let older = r#"{"addresses":[["dummy0","10.0.0.9/32"]],"routes":[]}"#;
    let mut ours: Ours = serde_json::from_str(older).unwrap();
    assert_eq!(
        turn(&dropped, &mut kernel, &mut ours),
        ["remove 10.0.0.9/32 from dummy0"]
    );
}

#[test]
fn all_that_was_on_a_link_goes_with_it() {
    let ((mut kernel, named), mut ours) = (with_dummy0(), Ours::default());
    let dropped = NetworkSpec::default();
    turn(&named, &mut kernel, &mut ours);
    assert_eq!(
        steps(&dropped, &kernel, &[], CleanupPolicy::Remove, &ours),
        ["remove link dummy0"]
    );
    // Its module was unloaded; the kernel was read in the middle of that.
    kernel.links.pop();
    let nothing: Vec<String> = Vec::new();
    assert_eq!(turn(&dropped, &mut kernel, &mut ours), nothing);
    assert_eq!(ours, Ours::default());
}
