//! The task that keeps the kernel's network in the desired state.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    time::Duration,
};

use futures_util::{FutureExt, Stream, StreamExt};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};
use tracing::{info, warn};

use super::{
    AddressStatus, CleanupPolicy, DhcpSpec, KernelState, Lease, Link, LinkStatus, NetlinkError,
    NetworkPlan, NetworkSpec, NetworkStatus, Options, Ours, RouteStatus, desired,
    dhcp::{self, Port},
    dhcp_links, etc,
    fallback::Fallback,
    hostname,
    kernel::Kernel,
    leases::{self, Leases},
    plan,
    plan::LastPlan,
    spec::LOOPBACK,
    sysctl,
};
use crate::base::error_chain::chain;
use crate::containers::host_files;

/// Limit on the rounds of one reconciliation. Some steps make the next ones possible (a link that is up gets a carrier), so the
/// kernel is read again after them.
const ROUNDS: usize = 4;
/// Pause before a failed step is tried again: the obstacle may have gone.
const RETRY: Duration = Duration::from_secs(5);

/// Pause after steps that the kernel took and that changed nothing: their own notifications would begin the next try at once, for ever.
const UNSETTLED: Duration = Duration::from_secs(1);

/// Timeout for the kernel. It answers in milliseconds, unless it had no room for its answer.
const NETLINK: Duration = Duration::from_secs(30);

pub(super) struct Actor {
    options: Options,
    specs: watch::Receiver<Option<NetworkSpec>>,
    kernel: Kernel,
    leases: Leases,
    clients: BTreeMap<String, Client>,
    /// The link that automatic DHCP has settled on.
    automatic: Option<String>,
    fallback: Fallback,
    /// Cards that were told to take router advertisements, by the kernel's index.
    listening: BTreeSet<u32>,
    cleanup: CleanupPolicy,
    ours: Ours,
    /// Whether the last steps may have notifications and no end.
    is_unsettled: bool,
    last_plan: LastPlan,
    stable_name: String,
    hostname: String,
    /// Leases as the clients get them.
    leased: mpsc::Receiver<Lease>,
    lease_sender: mpsc::Sender<Lease>,
    status: watch::Sender<NetworkStatus>,
    exports: Exports,
}

/// A link's DHCP task, which ends when this value is dropped.
struct Client {
    port: Port,
    task: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The values that the next generation inherits, each published when it changes.
pub(super) struct Exports {
    /// The current leases.
    pub(super) leases: watch::Sender<Vec<Lease>>,
    /// The addresses and routes that were added or adopted, and the MTUs that were replaced.
    pub(super) ours: watch::Sender<Ours>,
}

impl Actor {
    /// Opens the netlink socket at once, so that the caller gets its error; the returned future then runs for ever.
    #[allow(clippy::new_ret_no_self)]
    pub(super) fn new(
        options: Options,
        specs: watch::Receiver<Option<NetworkSpec>>,
        inherited: Vec<Lease>,
        status: watch::Sender<NetworkStatus>,
        exports: Exports,
    ) -> Result<impl Future<Output = ()> + Send, NetlinkError> {
        let (kernel, changes) = Kernel::open()?;
        let (lease_sender, leased) = mpsc::channel(8);
        let now = dhcp::boot_seconds();
        let leases: Leases = inherited
            .into_iter()
            .filter(|lease| !lease.is_over(now))
            .map(|lease| (lease.link.clone(), lease))
            .collect();
        let actor = Self {
            fallback: Fallback::new(Instant::now(), Duration::from_secs(now)),
            listening: BTreeSet::new(),
            cleanup: options.cleanup,
            specs,
            kernel,
            automatic: leases.keys().next().cloned(),
            leases,
            clients: BTreeMap::new(),
            ours: options.ours.clone(),
            is_unsettled: false,
            last_plan: LastPlan::default(),
            stable_name: String::new(),
            hostname: String::new(),
            leased,
            lease_sender,
            status,
            exports,
            options,
        };
        Ok(actor.run(changes))
    }

    async fn run(mut self, mut changes: impl Stream<Item = ()> + Send + Unpin) {
        if let Err(error) = sysctl::prepare(&self.options.procfs) {
            warn!(%error, "cannot set the network's kernel settings");
        }
        if self.specs.wait_for(Option::is_some).await.is_err() {
            return;
        }
        loop {
            let problems = self.reconcile().await;
            if self.is_unsettled {
                tokio::time::sleep(UNSETTLED).await;
            }
            let retry = async {
                match problems {
                    true => tokio::time::sleep(RETRY).await,
                    false => std::future::pending().await,
                }
            };
            let lease_end = leases::first_end(&self.leases, dhcp::boot_seconds());
            tokio::select! {
                changed = self.specs.changed() => if changed.is_err() { return },
                Some(lease) = self.leased.recv() => {
                    self.leases.insert(lease.link.clone(), lease);
                }
                Some(()) = changes.next() => {
                    // Changes come in bursts, our own among them: one read of the kernel's state covers all of them.
                    while let Some(Some(())) = changes.next().now_or_never() {}
                }
                () = dhcp::sleep_for(lease_end) => {}
                () = dhcp::sleep_until(self.fallback.ends()) => {}
                () = retry => {}
            }
        }
    }

    /// Applies the desired state to the kernel and publishes the outcome. Returns whether a step has to be tried again.
    async fn reconcile(&mut self) -> bool {
        let wanted = self.specs.borrow_and_update().clone().unwrap_or_default();
        let mut spec = wanted.clone();
        for lease in leases::end_over(&mut self.leases, dhcp::boot_seconds()) {
            warn!(link = lease.link, address = %lease.address, "the DHCP lease is over");
        }
        let mut problems = Vec::new();
        let mut kernel = KernelState::default();
        let mut dhcp = BTreeMap::new();
        let mut tried = NetworkPlan::default();
        self.is_unsettled = false;
        for _ in 0..ROUNDS {
            let read = tokio::time::timeout(NETLINK, self.kernel.read()).await;
            kernel = match read.unwrap_or(Err(NetlinkError::NoAnswer)) {
                Ok(kernel) => kernel,
                Err(error) => {
                    // The last published state remains the best one that is known.
                    self.status
                        .send_if_modified(|status| status.replace_problems(vec![chain(&error)]));
                    return true;
                }
            };
            if self.stable_name.is_empty() {
                self.stable_name = hostname::stable_name(&identity(&self.options, &kernel));
            }
            self.forget_vanished(&kernel);
            self.listen_to_routers(&kernel);
            spec = self.fallback.spec(&wanted, &kernel, Instant::now());
            dhcp = dhcp_links(&spec, &kernel, self.automatic.as_deref(), &self.leases);
            self.automatic = if spec.is_automatic() {
                dhcp.keys().next().cloned()
            } else {
                None
            };
            self.leases.retain(|link, _| dhcp.contains_key(link));
            let desired = desired(&spec, &kernel, &dhcp, &self.leases);
            self.ours.forget_gone(&desired, &kernel);
            let plan = plan(&desired, &kernel, self.cleanup, &self.ours);
            if self.last_plan.is_news(&plan) {
                info!(%plan, "changing the network");
            }
            if plan.steps.is_empty() {
                problems.clear();
                self.is_unsettled = false;
                self.ours.remember(&desired);
                break;
            }
            if plan == tried {
                // None of its steps has changed anything: that takes time, or another config.
                self.is_unsettled = has_notifications(&plan, &problems);
                break;
            }
            self.ours.note_mtus(&plan, &kernel);
            problems = self.apply(&plan).await;
            self.ours.remember(&desired);
            tried = plan;
            // As far as nobody has looked at what came of them.
            self.is_unsettled = true;
        }
        self.cleanup = CleanupPolicy::Keep;
        self.exports.ours.send_if_modified(|old| {
            let changed = *old != self.ours;
            if changed {
                old.clone_from(&self.ours);
            }
            changed
        });
        self.keep_clients(&dhcp, &kernel);
        self.publish(&spec, &dhcp, &kernel, problems)
    }

    /// Applies all steps of a plan, and returns why some have failed.
    async fn apply(&self, plan: &NetworkPlan) -> Vec<String> {
        let mut problems = Vec::new();
        for step in &plan.steps {
            let applied = tokio::time::timeout(NETLINK, self.kernel.apply(step)).await;
            if let Err(error) = applied.unwrap_or(Err(NetlinkError::NoAnswer)) {
                problems.push(chain(&error));
            }
        }
        problems
    }

    /// Has each card take router advertisements, once: a later value is somebody's wish. Not links made by software, whose other ends may be
    /// containers.
    fn listen_to_routers(&mut self, kernel: &KernelState) {
        for card in kernel.links.iter().filter(|link| link.is_hardware()) {
            if !self.listening.insert(card.index) {
                continue;
            }
            if let Err(error) = sysctl::listen_to_routers(&self.options.procfs, &card.name) {
                warn!(link = card.name, %error, "the card may ignore router advertisements while the machine forwards packets");
            }
        }
    }

    /// Drops the lease and the client of a link that is gone or is another card now.
    fn forget_vanished(&mut self, kernel: &KernelState) {
        let is_same =
            |name: &str, mac: &str| kernel.link(name).is_some_and(|link| link.mac_text() == mac);
        self.leases.retain(|name, lease| is_same(name, &lease.mac));
        self.clients.retain(|name, client| {
            is_same(name, &client.port.mac_text)
                && kernel
                    .link(name)
                    .is_some_and(|link| link.index == client.port.index)
        });
    }

    /// Runs a client on each DHCP link that has a carrier. A link whose carrier comes back asks again for its lease: it may be
    /// plugged into another network now.
    fn keep_clients(&mut self, dhcp: &BTreeMap<String, DhcpSpec>, kernel: &KernelState) {
        let carrier = |name: &str| kernel.link(name).filter(|link| link.carrier);
        self.clients
            .retain(|name, _| dhcp.contains_key(name) && carrier(name).is_some());
        for name in dhcp
            .keys()
            .filter(|name| !self.clients.contains_key(*name))
            .cloned()
            .collect::<Vec<_>>()
        {
            let Some(link) = carrier(&name) else { continue };
            let port = port_of(link);
            let lease = self.leases.get(&name).cloned();
            let client = dhcp::keep_lease(
                port.clone(),
                lease,
                self.hostname_to_send(),
                self.lease_sender.clone(),
            );
            self.clients.insert(
                name,
                Client {
                    port,
                    task: crate::base::task::spawn(client),
                },
            );
        }
    }

    /// Returns the hostname for the DHCP server, which may register it in DNS: our own name, but never one that another DHCP
    /// server gave us.
    fn hostname_to_send(&self) -> String {
        let spec = self.specs.borrow().clone().unwrap_or_default();
        hostname::choose(&spec.hostname, None, &self.stable_name).0
    }

    /// Writes files below /etc. Returns false if one cannot be written.
    fn write_files(&self, files: &[(&str, String)], problems: &mut Vec<String>) -> bool {
        let mut are_written = true;
        for (name, text) in files {
            if let Err(error) = etc::write(&self.options.etc, name, text) {
                are_written = false;
                problems.push(chain(&error));
            }
            if let Err(error) = host_files::show(name, text) {
                problems.push(format!("containers do not see the new {name}: {error}"));
            }
        }
        are_written
    }

    fn set_hostname(&mut self, hostname: String, problems: &mut Vec<String>) {
        if hostname == self.hostname {
            return;
        }
        match rustix::system::sethostname(hostname.as_bytes()) {
            Ok(()) => self.hostname = hostname,
            Err(errno) => problems.push(format!("cannot set the hostname to {hostname}: {errno}")),
        }
    }

    /// Publishes the state, and writes the files that follow from it. Returns whether a write has to be tried again.
    fn publish(
        &mut self,
        spec: &NetworkSpec,
        dhcp: &BTreeMap<String, DhcpSpec>,
        kernel: &KernelState,
        mut problems: Vec<String>,
    ) -> bool {
        let named = leases::hostname(&self.leases, dhcp);
        let (hostname, origin) = hostname::choose(&spec.hostname, named, &self.stable_name);
        let resolvers = if spec.nameservers.is_empty() {
            leases::resolvers(&self.leases)
        } else {
            spec.nameservers.clone()
        };
        let search_domains = if spec.search_domains.is_empty() {
            leases::domains(&self.leases)
        } else {
            spec.search_domains.clone()
        };
        let addresses = addresses_of(kernel);
        let own = addresses.first().map(|address| address.address.address());
        let address_ready = is_reachable(&addresses);

        let files = [
            ("resolv.conf", etc::resolv_conf(&resolvers, &search_domains)),
            ("hosts", etc::hosts(&hostname, own, &spec.hosts)),
            ("hostname", format!("{hostname}\n")),
        ];
        let files_written = self.write_files(&files, &mut problems);
        self.set_hostname(hostname, &mut problems);
        let routes = routes_of(kernel);
        let retry = !problems.is_empty();
        // A link that comes tells of itself.
        problems.extend(self.fallback.problem().map(str::to_owned));
        let status = NetworkStatus {
            links: kernel.links.iter().map(link_status).collect(),
            without_lease: leases::without(dhcp, &self.leases),
            lease_may_name: leases::may_name(spec, dhcp, &self.leases),
            address_ready,
            connectivity_ready: routes.iter().any(|route| route.destination.prefix() == 0),
            etc_files_ready: files_written,
            ready: address_ready && files_written,
            addresses,
            routes,
            resolvers,
            search_domains,
            time_servers: leases::time_servers(&self.leases),
            hostname: self.hostname.clone(),
            hostname_origin: (!self.hostname.is_empty()).then_some(origin),
            problems,
        };
        self.status.send_if_modified(|old| {
            let have_changed = old.replace_problems(status.problems.clone());
            let changed = have_changed || *old != status;
            *old = status;
            changed
        });
        let leases: Vec<Lease> = self.leases.values().cloned().collect();
        self.exports.leases.send_if_modified(|old| {
            let changed = *old != leases;
            *old = leases;
            changed
        });
        retry
    }
}

fn identity(options: &Options, kernel: &KernelState) -> String {
    let macs: Vec<String> = kernel
        .links
        .iter()
        .filter(|link| link.is_hardware())
        .map(Link::mac_text)
        .collect();
    hostname::machine_identity(&options.sysfs, &macs)
}

fn port_of(link: &Link) -> Port {
    Port {
        name: link.name.clone(),
        index: link.index,
        mac: link.mac.clone(),
        mac_text: link.mac_text(),
    }
}

fn link_status(link: &Link) -> LinkStatus {
    LinkStatus {
        name: link.name.clone(),
        index: link.index,
        mac: link.mac_text(),
        up: link.up,
        carrier: link.carrier,
        mtu: link.mtu,
        kind: link.kind.clone(),
    }
}

/// Lists the addresses that other machines can reach this one at: IPv4 first, no loopback. Those on `lo` come last: only a route that is
/// announced somehow leads to them.
fn addresses_of(kernel: &KernelState) -> Vec<AddressStatus> {
    let mut found: Vec<AddressStatus> = kernel
        .addresses
        .iter()
        .filter(|address| address.global && !address.cidr.address().is_loopback())
        .map(|address| AddressStatus {
            link: kernel.name_of(address.index).to_owned(),
            address: address.cidr,
        })
        .collect();
    found.sort_by_key(|it| (it.link == LOOPBACK, !it.address.address().is_ipv4()));
    found
}

/// Returns whether the kernel has notifications of the steps of a plan that failed with these problems: of those that it took, also where it
/// refused others.
fn has_notifications(plan: &NetworkPlan, problems: &[String]) -> bool {
    problems.len() < plan.steps.len()
}

/// Returns whether one of these addresses is on a link to other machines; the first is, if any.
fn is_reachable(addresses: &[AddressStatus]) -> bool {
    addresses.first().is_some_and(|it| it.link != LOOPBACK)
}

fn routes_of(kernel: &KernelState) -> Vec<RouteStatus> {
    let status = |route: &super::Route| RouteStatus {
        link: kernel.name_of(route.index).to_owned(),
        destination: route.destination,
        gateway: route.gateway,
        metric: route.metric,
    };
    kernel.routes.iter().map(status).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::network::{Address, Step};

    fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.to_owned(),
            mac: Vec::new(),
            up: true,
            carrier: true,
            mtu: 1500,
            kind: None,
            loopback: name == LOOPBACK,
            ethernet: name != LOOPBACK,
        }
    }

    fn address(index: u32, cidr: &str) -> Address {
        Address {
            index,
            cidr: cidr.parse().unwrap(),
            global: true,
            permanent: true,
        }
    }

    /// Beside a step that fails, one that is taken and changes nothing would begin the next try at once as well, for ever.
    #[test]
    fn steps_that_are_taken_have_notifications_also_beside_one_that_fails() {
        let up = |index| Step::SetUp {
            name: format!("eth{index}"),
            index,
            up: true,
        };
        let plan = NetworkPlan {
            steps: vec![up(1), up(2)],
        };
        let refused = || "the kernel refuses the request".to_owned();
        for (problems, expected) in [
            (vec![], true),
            (vec![refused()], true),
            (vec![refused(), refused()], false),
        ] {
            assert_eq!(has_notifications(&plan, &problems), expected);
        }
    }

    #[test]
    fn an_address_of_the_loopback_reaches_nobody_and_comes_last() {
        let mut kernel = KernelState {
            links: vec![link(1, "lo"), link(2, "eth0")],
            addresses: vec![address(1, "10.255.0.1/32")],
            ..KernelState::default()
        };
        assert!(!is_reachable(&addresses_of(&kernel)));
        kernel.addresses.push(address(2, "fd00::2/64"));
        kernel.addresses.push(address(2, "192.0.2.2/24"));
        let all = addresses_of(&kernel);
        assert!(is_reachable(&all));
        let links: Vec<&str> = all.iter().map(|it| it.link.as_str()).collect();
        assert_eq!(links, ["eth0", "eth0", "lo"]);
        assert_eq!(all[0].address.to_string(), "192.0.2.2/24");
    }
}
