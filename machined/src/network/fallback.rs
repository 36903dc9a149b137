//! The network of a machine that has none of the links to which its config gives addresses: that of a config without addresses.
//!
//! The name of a card depends on who gives it: `eth0` here, `enp1s0` elsewhere. A machine that waits for its link for ever has no address,
//! so nobody can reach it to mend its config.

use std::time::Duration;

use tokio::time::Instant;

use super::{KernelState, NetworkSpec};

/// Time for the drivers of cards, from the kernel's start on, and for a link that has gone to come back, as one does whose driver starts it anew. A
/// link that comes later ends the fallback.
const DRIVERS: Duration = Duration::from_secs(30);
/// Limit on the links of the config that a message names.
const MOST_NAMED: usize = 5;

/// Decides whether the fallback is in force.
#[derive(Debug)]
pub(super) struct Fallback {
    /// The end of the time for drivers.
    late: Instant,
    /// The same, while it is waited for.
    ends: Option<Instant>,
    /// The links that have addresses, as long as one of them is there.
    there: Option<Vec<String>>,
    /// What to tell of the fallback while it is in force.
    problem: Option<String>,
}

impl Fallback {
    /// `running`: how long the kernel has been running at `now`. Its drivers outlive a change of generations.
    pub(super) fn new(now: Instant, running: Duration) -> Self {
        Self {
            late: now + DRIVERS.saturating_sub(running),
            ends: None,
            there: None,
            problem: None,
        }
    }

    /// Returns the spec that counts at `now`: without the links that have addresses, if the fallback is in force.
    pub(super) fn spec(
        &mut self,
        wanted: &NetworkSpec,
        kernel: &KernelState,
        now: Instant,
    ) -> NetworkSpec {
        let missing = missing(wanted, kernel);
        self.wait_for_gone(wanted, missing.is_some(), now);
        self.ends = Some(self.late).filter(|late| missing.is_some() && now < *late);
        self.problem = missing.filter(|_| now >= self.late);
        let mut spec = wanted.clone();
        if self.problem.is_some() {
            spec.links.retain(|link| !link.is_addressed());
        }
        spec
    }

    /// Gives links that were there a moment ago their time. Another config's are not waited for: whoever applied it sees at once what it does.
    fn wait_for_gone(&mut self, wanted: &NetworkSpec, are_missing: bool, now: Instant) {
        let names: Vec<String> = addressed(wanted).map(str::to_owned).collect();
        if !are_missing {
            self.there = Some(names);
        } else if self.there.take() == Some(names) {
            self.late = self.late.max(now + DRIVERS);
        }
    }

    /// Returns when the fallback begins, unless a link comes before; none if it is not to begin.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.ends
    }

    /// Returns why the fallback is in force; none if it is not.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

/// Describes a machine that has none of the links with addresses; none if it has one of them, or if the config has no such links.
fn missing(spec: &NetworkSpec, kernel: &KernelState) -> Option<String> {
    let names: Vec<&str> = addressed(spec).collect();
    if names.is_empty() || names.iter().any(|name| kernel.link(name).is_some()) {
        return None;
    }
    let named = names.get(..MOST_NAMED).unwrap_or(&names);
    let cards = kernel.links.iter().filter(|link| link.is_hardware());
    let cards: Vec<&str> = cards.map(|link| link.name.as_str()).collect();
    let cards = match cards.as_slice() {
        [] => "it has no network card".to_owned(),
        cards => format!("its network cards: {}", cards.join(", ")),
    };
    Some(format!(
        "the config gives addresses to {} alone, and the machine has no such link ({cards}). Until the config names one of its links, DHCP runs on the first card with a carrier",
        named.join(", ")
    ))
}

/// Lists the links that have addresses.
fn addressed(spec: &NetworkSpec) -> impl Iterator<Item = &str> {
    let links = spec.links.iter().filter(|link| link.is_addressed());
    links.map(|link| link.name.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::network::{Link, LinkSpec, dhcp_links};

    fn card(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.to_owned(),
            mac: Vec::new(),
            up: true,
            carrier: true,
            mtu: 1500,
            kind: None,
            loopback: false,
            ethernet: true,
        }
    }

    fn kernel(cards: &[&str]) -> KernelState {
        let cards = (2..).zip(cards).map(|(index, name)| card(index, name));
        KernelState {
            links: cards.collect(),
            ..KernelState::default()
        }
    }

    /// A config that gives an address to each of these links.
    fn addresses_on(links: &[&str]) -> NetworkSpec {
        let links = links.iter().map(|name| LinkSpec {
            addresses: vec!["192.0.2.9/24".parse().unwrap()],
            ..LinkSpec::new(*name)
        });
        NetworkSpec {
            links: links.collect(),
            ..NetworkSpec::default()
        }
    }

    #[test]
    fn a_machine_whose_card_has_another_name_is_reachable_after_a_while() {
        let start = Instant::now();
        let late = start + DRIVERS - Duration::from_secs(2);
        let (wanted, here) = (addresses_on(&["enp1s0"]), kernel(&["eth0"]));
        let mut fallback = Fallback::new(start, Duration::from_secs(2));
        assert_eq!(fallback.spec(&wanted, &here, start), wanted);
        assert_eq!((fallback.ends(), fallback.problem()), (Some(late), None));

        let spec = fallback.spec(&wanted, &here, late);
        let dhcp = dhcp_links(&spec, &here, None, &BTreeMap::new());
        assert_eq!(dhcp.into_keys().collect::<Vec<_>>(), ["eth0"]);
        assert_eq!(fallback.ends(), None);
        let problem = fallback.problem().unwrap();
        assert!(problem.contains("enp1s0") && problem.contains("eth0"));

        // Its driver was slow.
        let there = kernel(&["eth0", "enp1s0"]);
        assert_eq!(fallback.spec(&wanted, &there, late), wanted);
        assert_eq!((fallback.ends(), fallback.problem()), (None, None));
    }

    /// So a machine with the fallback keeps its address while machined starts again.
    #[test]
    fn drivers_have_no_more_time_in_a_kernel_that_runs() {
        let now = Instant::now();
        let mut fallback = Fallback::new(now, Duration::from_secs(3600));
        let spec = fallback.spec(&addresses_on(&["enp1s0"]), &kernel(&["eth0"]), now);
        assert!(spec.is_automatic());
    }

    /// A machine with a fixed address is on no other network because its driver starts its card anew.
    #[test]
    fn a_link_that_has_gone_has_time_to_come_back() {
        let start = Instant::now();
        let gone = start + Duration::from_secs(600);
        let (wanted, there) = (addresses_on(&["eth1"]), kernel(&["eth0", "eth1"]));
        let mut fallback = Fallback::new(start, Duration::from_secs(3600));
        assert_eq!(fallback.spec(&wanted, &there, start), wanted);
        let without = kernel(&["eth0"]);
        assert_eq!(fallback.spec(&wanted, &without, gone), wanted);
        assert_eq!(fallback.ends(), Some(gone + DRIVERS));
        let spec = fallback.spec(&wanted, &without, gone + DRIVERS);
        assert!(spec.is_automatic());
        // Nobody waits for the links of another config.
        assert_eq!(fallback.spec(&wanted, &there, gone + DRIVERS), wanted);
        let spec = fallback.spec(&addresses_on(&["enp1s0"]), &there, gone + DRIVERS);
        assert!(spec.is_automatic());
    }

    #[test]
    fn one_link_of_the_config_is_enough() {
        let now = Instant::now();
        let mut fallback = Fallback::new(now, DRIVERS);
        for wanted in [
            addresses_on(&["eth7", "eth0"]),
            addresses_on(&[]),
            addresses_on(&["lo"]),
        ] {
            let spec = fallback.spec(&wanted, &kernel(&["eth0"]), now);
            assert_eq!(spec, wanted);
            assert_eq!((fallback.ends(), fallback.problem()), (None, None));
        }
    }
}
