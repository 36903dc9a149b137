//! The difference between the desired state and the kernel's, as a list of steps.
//!
//! Addresses and routes that are right already are adopted: no step touches them, which keeps connections alive over a soft upgrade.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use super::{Address, Desired, DesiredLink, DesiredRoute, KernelState, Link, Route};
use crate::values::Cidr;

/// The policy for removing addresses, routes and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanupPolicy {
    /// Removes everything on our links that is not desired, and links that an earlier generation made. Safe only before any
    /// program of this generation runs that makes links or addresses of its own.
    Remove,
    /// Removes only what we added ourselves: containers and their networks share the kernel with us.
    Keep,
}

/// The addresses and routes that this generation has added or adopted, and so may remove, and the MTUs that it has replaced, and so may set
/// back. It leaves the list to the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ours {
    addresses: BTreeSet<(String, Cidr)>,
    routes: BTreeSet<(String, Cidr, u32)>,
    /// By the names of links: their MTUs before the first one of ours.
    mtus: BTreeMap<String, u32>,
}

impl Ours {
    /// Adds all addresses and routes of `desired`.
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

    /// Notes the MTUs that this plan replaces. A link's first note stays: the later ones would be MTUs of ours.
    pub(super) fn note_mtus(&mut self, plan: &NetworkPlan, kernel: &KernelState) {
        for step in &plan.steps {
            if let Step::SetMtu { name, .. } = step
                && let Some(link) = kernel.link(name)
            {
                self.mtus.entry(name.clone()).or_insert(link.mtu);
            }
        }
    }

    /// Forgets all that is neither desired nor there any more: if it comes again, another program has made it.
    pub(super) fn forget_gone(&mut self, desired: &Desired, kernel: &KernelState) {
        let wanted = |name: &String| desired.links.get(name);
        self.addresses.retain(|(name, cidr)| {
            let mut there = kernel.addresses.iter();
            wanted(name).is_some_and(|link| link.addresses.contains(cidr))
                || there.any(|it| it.cidr == *cidr && kernel.name_of(it.index) == name)
        });
        self.routes.retain(|(name, destination, metric)| {
            let is_desired = |link: &DesiredLink| {
                let mut routes = link.routes.iter();
                routes.any(|it| (it.destination, it.metric) == (*destination, *metric))
            };
            let is_it = |route: &Route| {
                (route.destination, route.metric) == (*destination, *metric)
                    && kernel.name_of(route.index) == name
            };
            wanted(name).is_some_and(is_desired) || kernel.routes.iter().any(is_it)
        });
        self.mtus.retain(|name, before| {
            wanted(name).is_some_and(|link| link.mtu.is_some())
                || kernel.link(name).is_some_and(|link| link.mtu != *before)
        });
    }
}

/// One change of the kernel's state. Names are for messages, indexes for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Step {
    /// Delete a link that an earlier generation left.
    RemoveLink { name: String, index: u32 },
    /// Bring a link up or down.
    SetUp { name: String, index: u32, up: bool },
    /// Set the MTU.
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
    /// The order matters. New addresses come before old ones go. Old routes go before new ones come: the kernel takes only one
    /// route per destination and metric.
    pub steps: Vec<Step>,
}

/// The last plan, so that the log has each once: a step that the kernel refuses is in the plan again at every look.
#[derive(Debug, Default)]
pub(super) struct LastPlan(NetworkPlan);

impl LastPlan {
    /// Takes the next plan. Returns whether it has steps, and is another one than the last.
    pub(super) fn is_news(&mut self, plan: &NetworkPlan) -> bool {
        let is_news = !plan.steps.is_empty() && self.0 != *plan;
        if self.0 != *plan {
            self.0.clone_from(plan);
        }
        is_news
    }
}

/// Kinds of links that machined's containers and configs make, and that the kernel lets us delete.
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

/// Returns the steps from `kernel` to `desired`.
pub fn plan(
    desired: &Desired,
    kernel: &KernelState,
    cleanup: CleanupPolicy,
    ours: &Ours,
) -> NetworkPlan {
    let mut steps = Vec::new();
    if cleanup == CleanupPolicy::Remove {
        steps.extend(leftover_links(desired, kernel));
    }
    steps.extend(mtus_to_set(desired, kernel, cleanup, ours));
    for (name, wanted) in &desired.links {
        if let Some(link) = kernel.link(name) {
            steps.extend(link_steps(wanted, link, kernel));
        }
    }
    // Remove old routes before adding new ones that would be the same route to the kernel, and while their source addresses still exist.
    steps.extend(routes_to_remove(desired, kernel, cleanup, ours));
    steps.extend(routes_to_add(desired, kernel));
    steps.extend(addresses_to_remove(desired, kernel, cleanup, ours));
    NetworkPlan { steps }
}

/// Returns the steps for up or down, and missing addresses.
fn link_steps(wanted: &DesiredLink, link: &Link, kernel: &KernelState) -> Vec<Step> {
    let (name, index) = (&link.name, link.index);
    let mut steps = Vec::new();
    if wanted.up != link.up {
        steps.push(Step::SetUp {
            name: name.clone(),
            index,
            up: wanted.up,
        });
    }
    if !wanted.up {
        return steps;
    }
    let is_there = |cidr: &Cidr| {
        let mut addresses = kernel.addresses.iter();
        addresses.any(|address| address.index == index && address.cidr == *cidr)
    };
    let missing = wanted.addresses.iter().filter(|cidr| !is_there(cidr));
    steps.extend(missing.map(|cidr| Step::AddAddress {
        name: name.clone(),
        index,
        cidr: *cidr,
    }));
    steps
}

/// Returns the steps to the desired MTUs, and back to those before ours where none is desired, also on a link that is not desired any more.
fn mtus_to_set(
    desired: &Desired,
    kernel: &KernelState,
    cleanup: CleanupPolicy,
    ours: &Ours,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let links = kernel.links.iter();
    for link in links.filter(|link| stays(link, desired, cleanup)) {
        let wanted = desired.links.get(&link.name).and_then(|link| link.mtu);
        let mtu = wanted.or_else(|| ours.mtus.get(&link.name).copied());
        if let Some(mtu) = mtu.filter(|mtu| *mtu != link.mtu) {
            steps.push(Step::SetMtu {
                name: link.name.clone(),
                index: link.index,
                mtu,
            });
        }
    }
    steps
}

fn routes_to_remove(
    desired: &Desired,
    kernel: &KernelState,
    cleanup: CleanupPolicy,
    ours: &Ours,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for route in kernel.routes.iter().filter(|route| !route.automatic) {
        let Some(link) = staying_link(route.index, desired, kernel, cleanup) else {
            continue;
        };
        let wanted = desired.links.get(&link.name);
        let key = (link.name.clone(), route.destination, route.metric);
        let mine = ours.routes.contains(&key) || is_cleaned(wanted, cleanup);
        let desired_routes = wanted.map(|link| link.routes.as_slice());
        let desired_routes = desired_routes.unwrap_or_default();
        // A route in the place of a desired one has to go as well, whichever program made it.
        let takes_the_place = |other: &DesiredRoute| {
            other.destination == route.destination && other.metric == route.metric
        };
        let in_the_way = desired_routes.iter().any(takes_the_place);
        let is_wanted = desired_routes.iter().any(|it| is_same_route(it, route));
        if (mine || in_the_way) && !is_wanted {
            steps.push(Step::RemoveRoute {
                name: link.name.clone(),
                route: route.clone(),
            });
        }
    }
    steps
}

fn routes_to_add(desired: &Desired, kernel: &KernelState) -> Vec<Step> {
    let mut steps = Vec::new();
    for (name, wanted) in desired.links.iter().filter(|(_, wanted)| wanted.up) {
        let Some(link) = kernel.link(name) else {
            continue;
        };
        let is_there = |route: &DesiredRoute| {
            let mut routes = kernel.routes.iter();
            routes.any(|other| other.index == link.index && is_same_route(route, other))
        };
        let missing = wanted.routes.iter().filter(|route| !is_there(route));
        steps.extend(missing.map(|route| Step::AddRoute {
            name: name.clone(),
            index: link.index,
            route: route.clone(),
        }));
    }
    steps
}

fn addresses_to_remove(
    desired: &Desired,
    kernel: &KernelState,
    cleanup: CleanupPolicy,
    ours: &Ours,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let removable = kernel.addresses.iter();
    for address in removable.filter(|address| is_removable(address)) {
        let Some(link) = staying_link(address.index, desired, kernel, cleanup) else {
            continue;
        };
        let wanted = desired.links.get(&link.name);
        let key = (link.name.clone(), address.cidr);
        let mine = ours.addresses.contains(&key) || is_cleaned(wanted, cleanup);
        if mine && !wanted.is_some_and(|link| link.addresses.contains(&address.cidr)) {
            steps.push(Step::RemoveAddress {
                name: link.name.clone(),
                index: address.index,
                cidr: address.cidr,
            });
        }
    }
    steps
}

/// Returns whether all that is not desired is removed from this link, also what we have not added.
fn is_cleaned(wanted: Option<&DesiredLink>, cleanup: CleanupPolicy) -> bool {
    cleanup == CleanupPolicy::Remove && wanted.is_some_and(|link| link.managed)
}

/// Returns the link with this index. None if this plan removes it: its addresses and routes go with it.
fn staying_link<'a>(
    index: u32,
    desired: &Desired,
    kernel: &'a KernelState,
    cleanup: CleanupPolicy,
) -> Option<&'a Link> {
    let mut links = kernel.links.iter();
    let link = links.find(|link| link.index == index)?;
    stays(link, desired, cleanup).then_some(link)
}

fn stays(link: &Link, desired: &Desired, cleanup: CleanupPolicy) -> bool {
    cleanup == CleanupPolicy::Keep || !is_leftover(link, desired)
}

/// Returns whether we may remove the address. Addresses from router advertisements (with a lifetime) and the kernel's link-local
/// ones are not ours.
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
        .filter(|link| is_leftover(link, desired))
        .map(|link| Step::RemoveLink {
            name: link.name.clone(),
            index: link.index,
        })
}

fn is_leftover(link: &Link, desired: &Desired) -> bool {
    let kind = link.kind.as_deref();
    kind.is_some_and(|kind| REMOVABLE_KINDS.contains(&kind))
        && !desired.links.contains_key(&link.name)
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
mod tests;
