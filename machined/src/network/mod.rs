//! The machine's network: links, addresses, routes, DHCP, resolvers, hostname.
//!
//! One task owns it. It keeps the spec from the config and the leases from DHCP, and whenever one of these or the
//! kernel's links or addresses change, it reads the kernel's state, computes the difference as a [`NetworkPlan`] and
//! applies it. So a start is a difference like any other: addresses and routes of the previous generation that are right stay
//! untouched, and all others are removed.
//!
//! ```no_run
//! # async fn boot() -> Result<(), machined::network::NetlinkError> {
//! use machined::network::{Network, NetworkSpec, Options};
//! let network = Network::start(Options::default(), Some(NetworkSpec::default()), Vec::new())?;
//! let mut status = network.status();
//! let _ = status.wait_for(|status| status.ready).await;
//! let for_the_next_generation = serde_json::to_string(&network.leases());
//! # Ok(())
//! # }
//! ```

mod actor;
mod desired;
mod dhcp;
mod etc;
mod fallback;
mod hostname;
mod kernel;
mod lease;
mod leases;
mod plan;
mod rtnetlink;
mod spec;
mod state;
mod status;
mod sysctl;

use std::path::PathBuf;

use tokio::{sync::watch, task::JoinHandle};

pub use desired::{Desired, DesiredLink, DesiredRoute, desired, dhcp_links};
pub use etc::EtcError;
pub use hostname::HostnameOrigin;
pub use kernel::{NetlinkError, RequestError};
pub use lease::{BadLease, Lease};
pub use plan::{CleanupPolicy, NetworkPlan, Ours, Step, plan};
pub use rtnetlink::Malformed;
pub use spec::{DhcpSpec, LinkSpec, NetworkSpec};
pub use state::{Address, KernelState, Link, Route, mac_bytes, mac_text};
pub use status::{AddressStatus, LinkStatus, NetworkStatus, RouteStatus};

/// Directories of the network task, and its cleanup policy.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory for resolv.conf, hosts and hostname.
    pub etc: PathBuf,
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// The things that the first plan may remove. [`CleanupPolicy::Remove`] is for the start of a generation, before its first container;
    /// [`CleanupPolicy::Keep`] for a machined that was restarted within one, or whose containers live on from the one before: they may
    /// have made links, addresses and routes.
    pub cleanup: CleanupPolicy,
    /// The addresses and routes that may be removed in any case, and the MTUs to set back: those of the generation before.
    pub ours: Ours,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            etc: "/run/etc".into(),
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            cleanup: CleanupPolicy::Remove,
            ours: Ours::default(),
        }
    }
}

/// The running network task. Dropping this value ends the task and leaves the kernel's state as it is.
#[derive(Debug)]
pub struct Network {
    spec: watch::Sender<Option<NetworkSpec>>,
    status: watch::Receiver<NetworkStatus>,
    leases: watch::Receiver<Vec<Lease>>,
    ours: watch::Receiver<Ours>,
    task: JoinHandle<()>,
}

impl Network {
    /// Starts the task on the current runtime. Without a spec it waits for the first one, because the default is often not what
    /// the config asks for. `inherited` are the leases that the previous generation exported: they are in force at once and
    /// confirmed with their server in the background.
    pub fn start(
        options: Options,
        spec: Option<NetworkSpec>,
        inherited: Vec<Lease>,
    ) -> Result<Self, NetlinkError> {
        let (spec, specs) = watch::channel(spec);
        let (status_sender, status) = watch::channel(NetworkStatus::default());
        let (lease_sender, leases) = watch::channel(inherited.clone());
        let (ours_sender, ours) = watch::channel(options.ours.clone());
        let exports = actor::Exports {
            leases: lease_sender,
            ours: ours_sender,
        };
        let actor = actor::Actor::new(options, specs, inherited, status_sender, exports)?;
        Ok(Self {
            spec,
            status,
            leases,
            ours,
            task: crate::base::task::spawn(actor),
        })
    }

    /// Sets another spec, for example after a new config. An equal spec changes nothing.
    pub fn set_spec(&self, spec: NetworkSpec) {
        self.spec.send_if_modified(|old| {
            let spec = Some(spec);
            let changed = *old != spec;
            *old = spec;
            changed
        });
    }

    /// Sets the spec of a machine without a config, unless there is one already.
    pub fn set_default_spec(&self) {
        self.spec.send_if_modified(|old| {
            let none = old.is_none();
            old.get_or_insert_default();
            none
        });
    }

    /// Returns a receiver of the state, which is updated after each reconciliation.
    pub fn status(&self) -> watch::Receiver<NetworkStatus> {
        self.status.clone()
    }

    /// Returns the current leases, for the next generation's [`Network::start`].
    pub fn leases(&self) -> Vec<Lease> {
        self.leases.borrow().clone()
    }

    /// Watches the leases.
    pub fn watch_leases(&self) -> watch::Receiver<Vec<Lease>> {
        self.leases.clone()
    }

    /// Returns the addresses and routes that it has added or adopted, and the MTUs that it has replaced, for the next generation's
    /// [`Options`].
    pub fn ours(&self) -> Ours {
        self.ours.borrow().clone()
    }

    /// Watches these.
    pub fn watch_ours(&self) -> watch::Receiver<Ours> {
        self.ours.clone()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.task.abort();
    }
}
