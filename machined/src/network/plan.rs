//! The difference between what is desired and what the kernel has, as a list of steps.
//!
//! What is right already is adopted: no step touches it, which is what keeps connections alive over a soft upgrade.

use std::{collections::BTreeSet, fmt};

use super::{Address, Cidr, Desired, DesiredRoute, KernelState, Route};

/// What may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// Everything on our links that is not desired, and links that an earlier generation made.
    /// Only right before anything of this generation runs that makes links or addresses of its own.
    Remove,
    /// Only what we put there ourselves: containers and their networks share the kernel with us.
    Keep,
}

/// What this generation has put into the kernel (or adopted there), and so may remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ours {
    addresses: BTreeSet<(String, Cidr)>,
    routes: BTreeSet<(String, Cidr, u32)>,
}

impl Ours {
    /// Adds all that `desired` names.
    pub fn remember(&mut self, desired: &Desired) {
        for (name, link) in &desired.links {
            self.addresses
                .extend(link.addresses.iter().map(|cidr| (name.clone(), *cidr)));
            self.routes.extend(
                link.routes
                    .iter()
                    .map(|route| (name.clone(), route.destination, route.metric)),
            );
        }
    }
}

/// One change of the kernel's state; names are for people, indexes for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Step {
    /// Delete a link that an earlier generation left.
    RemoveLink { name: String, index: u32 },
    /// Bring a link up or down.
    SetUp { name: String, index: u32, up: bool },
    /// Set the largest packet.
    SetMtu { name: String, index: u32, mtu: u32 },
    /// Add an address.
    AddAddress {
        name: String,
        index: u32,
        cidr: Cidr,
    },
    /// Remove a route.
    RemoveRoute { name: String, route: Route },
    /// Add a route.
    AddRoute {
        name: String,
        index: u32,
        route: DesiredRoute,
    },
    /// Remove an address.
    RemoveAddress {
        name: String,
        index: u32,
        cidr: Cidr,
    },
}

/// The steps, in the order of application.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPlan {
    /// New addresses come before old ones go, and old routes go before new ones come: the kernel takes only one route
    /// per destination and metric.
    pub steps: Vec<Step>,
}

/// Kinds of links that machined's containers and configs make, and that the kernel lets go of.
const REMOVABLE_KINDS: &[&str] = &[
    "bond",
    "bridge",
    "dummy",
    "geneve",
    "ifb",
    "ipvlan",
    "macvlan",
    "tun",
    "veth",
    "vlan",
    "vrf",
    "vxlan",
    "wireguard",
];

/// What to do to get from `kernel` to `desired`.
pub fn plan(
    desired: &Desired,
    kernel: &KernelState,
    leftovers: Leftovers,
    ours: &Ours,
) -> NetworkPlan {
    let mut steps = Vec::new();
    if leftovers == Leftovers::Remove {
        steps.extend(leftover_links(desired, kernel));
    }
    for (name, wanted) in &desired.links {
        let Some(link) = kernel.link(name) else {
            continue;
        };
        let (name, index) = (name.clone(), link.index);
        if let Some(mtu) = wanted.mtu.filter(|mtu| *mtu != link.mtu) {
            steps.push(Step::SetMtu {
                name: name.clone(),
                index,
                mtu,
            });
        }
        if wanted.up != link.up {
            steps.push(Step::SetUp {
                name: name.clone(),
                index,
                up: wanted.up,
            });
        }
        if !wanted.up {
            continue;
        }
        for cidr in wanted.addresses.iter().copied() {
            let there = kernel
                .addresses
                .iter()
                .any(|address| address.index == index && address.cidr == cidr);
            if !there {
                steps.push(Step::AddAddress {
                    name: name.clone(),
                    index,
                    cidr,
                });
            }
        }
    }
    for route in kernel.routes.iter().filter(|route| !route.automatic) {
        let name = kernel.name_of(route.index);
        let Some(wanted) = desired.links.get(name) else {
            continue;
        };
        let key = (name.to_owned(), route.destination, route.metric);
        let mine = ours.routes.contains(&key) || (leftovers == Leftovers::Remove && wanted.managed);
        // One in the place of a desired route has to go as well, whoever put it there.
        let in_the_way = wanted
            .routes
            .iter()
            .any(|other| other.destination == route.destination && other.metric == route.metric);
        if (mine || in_the_way)
            && !wanted
                .routes
                .iter()
                .any(|other| is_same_route(other, route))
        {
            steps.push(Step::RemoveRoute {
                name: name.to_owned(),
                route: route.clone(),
            });
        }
    }
    for (name, wanted) in desired.links.iter().filter(|(_, wanted)| wanted.up) {
        let Some(link) = kernel.link(name) else {
            continue;
        };
        for route in &wanted.routes {
            let there = kernel
                .routes
                .iter()
                .any(|other| other.index == link.index && is_same_route(route, other));
            if !there {
                steps.push(Step::AddRoute {
                    name: name.clone(),
                    index: link.index,
                    route: route.clone(),
                });
            }
        }
    }
    for address in kernel
        .addresses
        .iter()
        .filter(|address| is_removable(address))
    {
        let name = kernel.name_of(address.index);
        let Some(wanted) = desired.links.get(name) else {
            continue;
        };
        let mine = ours.addresses.contains(&(name.to_owned(), address.cidr))
            || (leftovers == Leftovers::Remove && wanted.managed);
        if mine && !wanted.addresses.contains(&address.cidr) {
            steps.push(Step::RemoveAddress {
                name: name.to_owned(),
                index: address.index,
                cidr: address.cidr,
            });
        }
    }
    NetworkPlan { steps }
}

/// Router advertisements bring addresses with a lifetime, the kernel link-local ones: neither is ours to remove.
fn is_removable(address: &Address) -> bool {
    address.global && address.permanent
}

fn is_same_route(wanted: &DesiredRoute, route: &Route) -> bool {
    wanted.destination == route.destination
        && wanted.gateway == route.gateway
        && wanted.metric == route.metric
        && wanted.source == route.source
}

fn leftover_links<'a>(
    desired: &'a Desired,
    kernel: &'a KernelState,
) -> impl Iterator<Item = Step> + 'a {
    kernel
        .links
        .iter()
        .filter(|link| {
            link.kind
                .as_deref()
                .is_some_and(|kind| REMOVABLE_KINDS.contains(&kind))
        })
        .filter(|link| !desired.links.contains_key(&link.name))
        .map(|link| Step::RemoveLink {
            name: link.name.clone(),
            index: link.index,
        })
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveLink { name, .. } => write!(f, "remove link {name}"),
            Self::SetUp { name, up: true, .. } => write!(f, "bring {name} up"),
            Self::SetUp {
                name, up: false, ..
            } => write!(f, "take {name} down"),
            Self::SetMtu { name, mtu, .. } => write!(f, "set the MTU of {name} to {mtu}"),
            Self::AddAddress { name, cidr, .. } => write!(f, "add {cidr} to {name}"),
            Self::RemoveAddress { name, cidr, .. } => write!(f, "remove {cidr} from {name}"),
            Self::AddRoute { name, route, .. } => {
                write!(f, "add route {} over {name}", route.destination)?;
                if let Some(gateway) = route.gateway {
                    write!(f, " via {gateway}")?;
                }
                write!(f, " metric {}", route.metric)
            }
            Self::RemoveRoute { name, route } => {
                write!(f, "remove route {} over {name}", route.destination)?;
                if let Some(gateway) = route.gateway {
                    write!(f, " via {gateway}")?;
                }
                write!(f, " metric {}", route.metric)
            }
        }
    }
}

impl fmt::Display for NetworkPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str("nothing to change");
        }
        for (i, step) in self.steps.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{step}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::network::{
        DhcpWish, Lease, Link, LinkWish, NetworkWish, RouteWish, desired, dhcp_links,
    };

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
        wish: &NetworkWish,
        kernel: &KernelState,
        leases: &[Lease],
        leftovers: Leftovers,
        ours: &Ours,
    ) -> Vec<String> {
        let leases: BTreeMap<_, _> = leases
            .iter()
            .map(|lease| (lease.link.clone(), lease.clone()))
            .collect();
        let dhcp = dhcp_links(wish, kernel, None, &leases);
        let plan = plan(
            &desired(wish, kernel, &dhcp, &leases),
            kernel,
            leftovers,
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
        let wish = NetworkWish::default();
        let mut kernel = fresh_kernel();
        assert_eq!(
            steps(&wish, &kernel, &[], Leftovers::Remove, &Ours::default()),
            ["bring eth0 up", "bring eth1 up", "bring lo up"]
        );
        for link in &mut kernel.links {
            link.up = true;
            link.carrier = true;
        }
        assert_eq!(
            steps(
                &wish,
                &kernel,
                &[lease()],
                Leftovers::Remove,
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
        let wish = NetworkWish::default();
        assert_eq!(
            steps(
                &wish,
                &configured_kernel(),
                &[lease()],
                Leftovers::Remove,
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
        let wish = NetworkWish::default();
        assert_eq!(
            steps(
                &wish,
                &kernel,
                &[lease()],
                Leftovers::Remove,
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
                &wish,
                &kernel,
                &[lease()],
                Leftovers::Keep,
                &Ours::default()
            ),
            nothing,
            "while containers run, only our own is touched"
        );
    }

    #[test]
    fn a_lost_lease_takes_its_address_and_route_along() {
        let kernel = configured_kernel();
        let wish = NetworkWish::default();
        let leases = BTreeMap::from([("eth0".to_owned(), lease())]);
        let dhcp = dhcp_links(&wish, &kernel, None, &leases);
        let mut ours = Ours::default();
        ours.remember(&desired(&wish, &kernel, &dhcp, &leases));
        assert_eq!(
            steps(&wish, &kernel, &[], Leftovers::Keep, &ours),
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
                &NetworkWish::default(),
                &configured_kernel(),
                &[changed],
                Leftovers::Keep,
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
        let mut eth1 = LinkWish::new("eth1");
        eth1.addresses = vec![cidr("192.0.2.7/24")];
        eth1.mtu = Some(9000);
        eth1.routes = vec![RouteWish {
            destination: None,
            gateway: Some("192.0.2.1".parse().unwrap()),
            source: None,
            metric: None,
        }];
        let wish = NetworkWish {
            links: vec![eth1, LinkWish::new("eth7")],
            ..NetworkWish::default()
        };
        assert_eq!(
            steps(
                &wish,
                &fresh_kernel(),
                &[lease()],
                Leftovers::Remove,
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

    #[test]
    fn a_link_that_the_config_takes_down_gets_no_dhcp() {
        let mut kernel = configured_kernel();
        kernel.links[2].carrier = true;
        let mut eth0 = LinkWish::new("eth0");
        eth0.up = false;
        let wish = NetworkWish {
            links: vec![eth0],
            ..NetworkWish::default()
        };
        let chosen = dhcp_links(&wish, &kernel, Some("eth0"), &BTreeMap::new());
        assert_eq!(chosen.keys().collect::<Vec<_>>(), ["eth1"]);
    }

    #[test]
    fn automatic_dhcp_stays_with_its_link() {
        let mut kernel = configured_kernel();
        kernel.links[2].carrier = true;
        let wish = NetworkWish::default();
        let chosen = |kernel: &KernelState, current, leases: &[Lease]| {
            let leases = leases
                .iter()
                .map(|lease| (lease.link.clone(), lease.clone()))
                .collect();
            dhcp_links(&wish, kernel, current, &leases)
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
        let wish = NetworkWish::default();
        let desired = desired(
            &wish,
            &kernel,
            &BTreeMap::from([("eth0".into(), DhcpWish::default())]),
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
}
