//! The machine, shared by the intent, the sequences, the API and the daemon: its version, its state, and the lock on changes. Rooms below know
//! the parts that they use, and not the machine.

mod config_trial;

pub use config_trial::TrialNumber;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;

use instar_api::events::EventPayload;
use instar_api::machine::{
    MachineStatusEvent,
    machine_status_event::{MachineStatus as WireStatus, machine_status::UnmetCondition},
};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use config_trial::ConfigTrial;

use crate::base::lock::Lock as _;
use crate::bundles::Bundles;
use crate::conditions::FirstSeen;
use crate::config::MachineConfig;
use crate::config_source::persisted::KeptConfig;
use crate::containers::{ImageUpdates, ImagesInForce, InForce, Updates};
use crate::disk::OwnedDisk;
use crate::etc_files::EtcFiles;
use crate::follow::Follow;
use crate::init_link::{BootId, InitLink};
use crate::kernel_settings::{KernelSettings, Undo};
use crate::kubernetes::{KnownNodes, NodeLogs, NodeRecord, PlanFile, PodsSocket};
use crate::left_sockets::LeftSockets;
use crate::modules::{Drivers, ModuleError};
use crate::network::Network;
use crate::oci::{ImageStore, Puller};
use crate::operation_lock::{Busy, Operation, OperationLock, Operations};
use crate::os_extensions::OsExtensions;
use crate::pins::{PinRecord, Pins};
use crate::services::{LogDisk, LogRing, MACHINED, Services};
use crate::store::event_log::{ActorId, EventLog};
use crate::store::{MachineStage, MachineStatus, ObservedVersions, Store};
use crate::temporary_registry::TemporaryRegistry;
use crate::time::TimeSync;
use crate::trust::{Granted, Maintenance, MetricsPort, OwnCertificates, PinnedKey, WorkersPort};
use crate::upgrade::{FailedImages, Floor, RunningSystem, UpgradeState};

/// A machine config and the text that it was read from.
pub struct Configured {
    /// The text as it was given; handed over to the next generation.
    pub text: String,
    /// The parsed config.
    pub config: MachineConfig,
    /// The puller of images that the config describes, with its certificate authorities; shared by all. Made at the first use.
    puller: OnceLock<Arc<Puller>>,
}

impl Configured {
    /// Combines a text and the config parsed from it.
    pub fn new(text: String, config: MachineConfig) -> Self {
        Configured {
            text,
            config,
            puller: OnceLock::new(),
        }
    }

    /// Returns the puller of images; `make` makes it at the first call.
    pub fn puller(&self, make: impl FnOnce(&MachineConfig) -> Puller) -> Arc<Puller> {
        let puller = self.puller.get_or_init(|| Arc::new(make(&self.config)));
        puller.clone()
    }
}

/// This generation, as init described it.
#[derive(Debug, Clone)]
pub struct Generation {
    /// 1 at boot; counts up.
    pub number: u64,
    /// Its own boot id.
    pub boot_id: BootId,
    /// The kernel's boot id.
    pub kernel_boot_id: BootId,
    /// Whether containers of the generation before live on in this one.
    pub keeps_workloads: bool,
}

/// Everything that the rooms above share.
pub struct Machine {
    /// The running version.
    pub running: RunningSystem,
    /// Which generation this is.
    pub generation: Generation,
    /// The log of events.
    pub events: EventLog,
    /// The current facts about the machine.
    pub store: Store,
    /// Versions of values that clients see but that are not in the store.
    pub observed_versions: ObservedVersions,
    /// Since when something is wrong with the machine.
    pub first_seen: FirstSeen,
    /// The services that machined keeps running.
    pub services: Services,
    /// The connection to init.
    pub init: InitLink,
    /// Where images are unpacked.
    pub images: ImageStore,
    /// Bundles of images on their way in.
    pub bundles: Bundles,
    /// The images that containers run.
    pub images_in_force: ImagesInForce,
    /// The images that wait behind the names that containers follow.
    pub image_updates: ImageUpdates,
    /// The images that are fetched ahead and kept.
    pub pins: Pins,
    /// The channel that the machine follows.
    pub follow: Follow,
    /// The registry that serves images for a while.
    pub temporary_registry: TemporaryRegistry,
    /// The logs of the services of a Kubernetes node.
    pub node_logs: NodeLogs,
    /// The socket by which pods of a Kubernetes node reach the API.
    pub pods_socket: watch::Sender<Option<PodsSocket>>,
    /// The plan for the container of a Kubernetes node.
    pub node_plan: PlanFile,
    /// The extensions of a Kubernetes node that were proven, and those that failed.
    pub node_record: NodeRecord,
    /// The nodes of its cluster.
    pub known_nodes: KnownNodes,
    /// When the statuses of static pods were asked for last. Held while they are.
    pub static_pods_asked: tokio::sync::Mutex<Option<Instant>>,
    /// The extensions of the machine itself.
    pub os_extensions: OsExtensions,
    /// The files below /etc that are not the image's.
    pub etc_files: EtcFiles,
    /// machined's own output.
    pub own_log: LogRing,
    /// The logs on the disk, which outlast restarts.
    pub log_disk: LogDisk,
    /// The task that owns the network.
    pub network: Network,
    /// STATE and /var.
    pub disk: OwnedDisk,
    /// The config on STATE.
    pub kept_config: KeptConfig,
    /// The task that owns the clock.
    pub clock: TimeSync,
    /// The lock on changes of the machine.
    pub operations: Operations,
    /// The kernel settings that the config asks for.
    pub kernel_settings: KernelSettings,
    /// Images that failed, the floor, and the version that waits for a reboot.
    pub upgrades: UpgradeState,
    /// The certificates that the node has issued to itself: of the previous generation, until the API has its own.
    pub own_certificates: watch::Sender<Option<OwnCertificates>>,
    /// The API's key, if no authority signs for the node.
    pub pinned_key: watch::Sender<PinnedKey>,
    /// The certificate that a control plane has signed, if no authority here signs for the node.
    pub granted_certificate: watch::Sender<Option<Granted>>,
    /// The socket at which workers ask for certificates, if this node signs them.
    pub workers_port: watch::Sender<Option<WorkersPort>>,
    /// The socket for metrics, if the config asks for them.
    pub metrics_port: watch::Sender<Option<MetricsPort>>,
    /// The socket at which containerd of a Kubernetes node asks for images, while it is open.
    pub images_port: watch::Sender<Weak<TcpListener>>,
    /// The listening sockets that the generation before has left, or the machined before.
    pub left_sockets: LeftSockets,
    drivers: OnceLock<Drivers>,
    config: watch::Sender<Option<Arc<Configured>>>,
    maintenance: watch::Sender<Maintenance>,
    trial: Mutex<ConfigTrial<Arc<Configured>, AbortHandle>>,
    kept: Mutex<BTreeMap<String, OwnedFd>>,
    settled: watch::Sender<bool>,
    /// Whether the machine begins to be a node of Kubernetes: as the boot has ended, or as its gate waits for kubelet.
    node_begins: watch::Sender<bool>,
    /// How this generation has given the node its plan for the first time.
    first_plan: watch::Sender<Option<FirstPlan>>,
}

/// The first plan that a generation gives its node of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstPlan {
    /// It is the previous one: no service starts again for it.
    AsBefore,
    /// It is another one: services may start again.
    New,
}

/// Returns the kernel settings that an earlier machined made and did not undo.
fn left_undone(kept: &mut BTreeMap<String, OwnedFd>) -> Undo {
    let Some(memfd) = kept.remove(Undo::NAME) else {
        return Undo::default();
    };
    Undo::from_memfd(&memfd).unwrap_or_else(|error| {
        tracing::error!("kernel settings of before stay until a reboot: {error:#}");
        Undo::default()
    })
}

/// The parts that a machine is made of.
pub struct Parts {
    /// The running version.
    pub running: RunningSystem,
    /// Which generation this is.
    pub generation: Generation,
    /// The connection to init.
    pub init: InitLink,
    /// Where images are unpacked.
    pub images: ImageStore,
    /// machined's own output.
    pub own_log: LogRing,
    /// The task that owns the network.
    pub network: Network,
    /// STATE and /var.
    pub disk: OwnedDisk,
    /// The task that owns the clock.
    pub clock: TimeSync,
    /// Images that failed, as known to the previous generation.
    pub failed: FailedImages,
    /// The floor, as known to the previous generation.
    pub floor: Option<Floor>,
    /// The images in force, as known to the previous generation.
    pub images_in_force: InForce,
    /// The updates of images that it handed over.
    pub image_updates: Updates,
    /// The pins that it handed over.
    pub pins: PinRecord,
    /// The API's certificates of the previous generation.
    pub own_certificates: Option<OwnCertificates>,
    /// The API's key of the previous generation, if no authority signs for the node.
    pub pinned_key: PinnedKey,
    /// The certificate of the previous generation that a control plane has signed.
    pub granted_certificate: Option<Granted>,
    /// Descriptors that an earlier machined of this generation left with init.
    pub kept: BTreeMap<String, OwnedFd>,
}

impl Machine {
    /// Returns the kernel's modules; their tables are read at the first call.
    pub fn drivers(&self) -> Result<Drivers, ModuleError> {
        if let Some(drivers) = self.drivers.get() {
            return Ok(drivers.clone());
        }
        let drivers = Drivers::of_running_kernel()?;
        Ok(self.drivers.get_or_init(|| drivers).clone())
    }

    /// Returns a machine that has not booted yet.
    pub fn new(mut parts: Parts) -> Self {
        let (events, store) = (EventLog::default(), Store::default());
        let log_disk = LogDisk::default();
        log_disk.follow(MACHINED, &parts.own_log);
        Machine {
            running: parts.running,
            generation: parts.generation,
            services: Services::new(events.clone(), store.clone(), log_disk.clone()),
            events,
            store,
            observed_versions: ObservedVersions::default(),
            first_seen: FirstSeen::default(),
            init: parts.init,
            bundles: Bundles::new(parts.images.directory()),
            images: parts.images,
            images_in_force: ImagesInForce::new(parts.images_in_force),
            image_updates: ImageUpdates::new(parts.image_updates),
            pins: Pins::new(parts.pins),
            follow: Follow::default(),
            temporary_registry: TemporaryRegistry::default(),
            node_logs: NodeLogs::default(),
            pods_socket: watch::channel(None).0,
            node_plan: PlanFile::default(),
            node_record: NodeRecord::default(),
            known_nodes: KnownNodes::default(),
            static_pods_asked: tokio::sync::Mutex::default(),
            os_extensions: OsExtensions::default(),
            etc_files: EtcFiles::default(),
            own_log: parts.own_log,
            log_disk,
            network: parts.network,
            disk: parts.disk,
            kept_config: KeptConfig::default(),
            clock: parts.clock,
            drivers: OnceLock::new(),
            config: watch::channel(None).0,
            maintenance: watch::channel(Maintenance::undecided()).0,
            trial: Mutex::default(),
            upgrades: UpgradeState::new(parts.failed, parts.floor, &mut parts.kept),
            kernel_settings: KernelSettings::new(left_undone(&mut parts.kept)),
            left_sockets: LeftSockets::find(&mut parts.kept),
            kept: Mutex::new(parts.kept),
            settled: watch::channel(false).0,
            node_begins: watch::channel(false).0,
            first_plan: watch::channel(None).0,
            own_certificates: watch::channel(parts.own_certificates).0,
            pinned_key: watch::channel(parts.pinned_key).0,
            granted_certificate: watch::channel(parts.granted_certificate).0,
            workers_port: watch::channel(None).0,
            metrics_port: watch::channel(None).0,
            images_port: watch::channel(Weak::new()).0,
            operations: Operations::default(),
        }
    }

    /// Returns the machine config; None in maintenance mode.
    pub fn config(&self) -> Option<Arc<Configured>> {
        self.config.borrow().clone()
    }

    /// Watches the machine config.
    pub fn watch_config(&self) -> watch::Receiver<Option<Arc<Configured>>> {
        self.config.subscribe()
    }

    /// Puts a config in force that has been checked.
    pub fn set_config(&self, configured: Arc<Configured>) {
        self.config.send_replace(Some(configured));
    }

    /// Watches which callers may give the machine a config while it has none.
    pub fn maintenance(&self) -> watch::Receiver<Maintenance> {
        self.maintenance.subscribe()
    }

    /// Sets which callers may give the machine a config while it has none.
    pub fn set_maintenance(&self, maintenance: Maintenance) {
        self.maintenance.send_replace(maintenance);
    }

    /// Whether any client may give the machine a config and manage its disks.
    pub fn is_open(&self) -> bool {
        self.config().is_none() && *self.maintenance.borrow() == Maintenance::Open
    }

    /// Returns the config that outlasts a trial: the one in force, unless that one is on trial.
    pub fn settled_config(&self) -> Option<Arc<Configured>> {
        self.lock_trial().settled().or_else(|| self.config())
    }

    /// Starts a trial of the next config, and the timer that ends it. Without a config in force there is no trial.
    pub fn begin_trial(&self, start_timer: impl FnOnce(TrialNumber) -> AbortHandle) {
        let Some(in_force) = self.config() else {
            return;
        };
        let replaced = self.lock_trial().begin(in_force, start_timer);
        if let Some(timer) = replaced {
            timer.abort();
        }
    }

    /// Confirms the config on trial: it stays.
    pub fn confirm_trial(&self) {
        let timer = self.lock_trial().confirm();
        if let Some(timer) = timer {
            timer.abort();
        }
    }

    /// Ends a trial whose time is over and returns the config to return to. None if the trial was confirmed meanwhile, or another one
    /// begun.
    pub fn expire_trial(&self, number: TrialNumber) -> Option<Arc<Configured>> {
        self.lock_trial().expire(number)
    }

    fn lock_trial(&self) -> MutexGuard<'_, ConfigTrial<Arc<Configured>, AbortHandle>> {
        self.trial.locked()
    }

    /// Marks the boot as ended. Tasks that wait for it go on.
    pub fn settle(&self) {
        self.settled.send_replace(true);
        self.begin_node();
    }

    /// Has the machine begin to be a node of Kubernetes, if its config makes it one.
    pub fn begin_node(&self) {
        self.node_begins.send_replace(true);
    }

    /// Watches whether the machine begins to be a node of Kubernetes.
    pub fn watch_node_begins(&self) -> watch::Receiver<bool> {
        self.node_begins.subscribe()
    }

    /// Notes that the node has a plan of this generation; only the first one counts.
    pub fn note_plan(&self, plan: FirstPlan) {
        self.first_plan.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(plan);
            is_first
        });
    }

    /// Watches for the first plan of this generation's node.
    pub fn watch_first_plan(&self) -> watch::Receiver<Option<FirstPlan>> {
        self.first_plan.subscribe()
    }

    /// Watches whether the boot has ended.
    pub fn watch_settled(&self) -> watch::Receiver<bool> {
        self.settled.subscribe()
    }

    /// Takes the lock on changes of the machine, if no other operation holds it.
    pub fn lock_operation(&self, operation: Operation) -> Result<OperationLock, Busy> {
        self.operations.lock(operation)
    }

    /// Takes a descriptor that an earlier machined of this generation left with init; a second call finds none.
    pub fn take_kept(&self, name: &str) -> Option<OwnedFd> {
        self.kept.locked().remove(name)
    }

    /// Returns the node's hostname.
    pub fn hostname(&self) -> String {
        let status = self.network.status();
        let hostname = status.borrow().hostname.clone();
        if hostname.is_empty() {
            "localhost".to_owned()
        } else {
            hostname
        }
    }

    /// Returns the log of a service, or machined's own.
    pub fn log_of(&self, name: &str) -> Option<LogRing> {
        match name {
            MACHINED => Some(self.own_log.clone()),
            _ => match self.services.get(name) {
                Some(service) => Some(service.log().clone()),
                None => self.node_logs.get(name),
            },
        }
    }

    /// Returns the names that `log_of` knows.
    pub fn log_names(&self) -> Vec<String> {
        let services = self.services.list();
        let ids = services
            .iter()
            .map(|service| service.definition().id.clone());
        ids.chain(self.node_logs.names()).collect()
    }

    /// Returns the stage that the machine is in, and its problems.
    pub fn status(&self) -> MachineStatus {
        self.store.get(MachineStatus::ID).unwrap_or(MachineStatus {
            stage: MachineStage::Booting,
            ready: false,
            unmet: Vec::new(),
        })
    }

    /// Enters a stage and emits an event; a status equal to the last one is not announced again.
    pub fn set_status(&self, status: MachineStatus) {
        if self.store.get::<MachineStatus>(MachineStatus::ID).as_ref() == Some(&status) {
            return;
        }
        let unmet = status.unmet.iter().map(|(name, reason)| UnmetCondition {
            name: name.clone(),
            reason: reason.clone(),
        });
        let event = MachineStatusEvent {
            stage: status.stage as i32,
            status: Some(WireStatus {
                ready: status.ready,
                unmet_conditions: unmet.collect(),
            }),
        };
        self.store.put(MachineStatus::ID, status);
        self.events
            .emit(&ActorId::default(), EventPayload::MachineStatus(event));
    }

    /// Enters a stage in which the machine is not ready.
    pub fn enter(&self, stage: MachineStage) {
        self.set_status(MachineStatus {
            stage,
            ready: false,
            unmet: Vec::new(),
        });
    }
}
