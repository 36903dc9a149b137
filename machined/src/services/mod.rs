//! The machine's services: processes of the rootfs and containers of the config, kept up and watched.

mod apid;
mod cgroup;
mod container;
mod dashboard;
mod health;
mod log_disk;
mod log_files;
mod log_ring;
mod lookup;
mod own;
mod own_process;
mod restart;
mod service;
mod state;
mod workload;

pub use apid::{Apid, Keys};
pub use cgroup::Cgroup;
pub use container::{ContainerWorkload, output_name};
pub use dashboard::Dashboard;
pub use health::{HealthCheck, Probe, Question};
pub use log_disk::LogDisk;
pub use log_files::OldLines;
pub use log_ring::{LogRing, Older, Reader as LogReader, Tail};
pub use own::MACHINED;
pub use service::{Definition, Dependency, Service, timestamp, wire_health};
pub use state::{Health, Phase, ServiceStatus};
pub use workload::{Exit, Running, Signal, Step, Workload};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::event_log::EventLog;
use crate::resources::{ServiceFact, Store};

/// All services; clones share them.
#[derive(Clone)]
pub struct Services {
    known: Arc<Mutex<BTreeMap<String, Service>>>,
    events: EventLog,
    store: Store,
    disk: LogDisk,
}

/// Why a service could not be controlled.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No service of this name.
    #[error("there is no service {0:?}; the list of services has the names")]
    Unknown(String),
    /// The machine needs it to be reachable.
    #[error("service {id:?} doesn't support {operation} operation via API")]
    NotControllable {
        /// Its name.
        id: String,
        /// `start`, `stop` or `restart`.
        operation: &'static str,
    },
}

impl Services {
    /// An empty set.
    pub fn new(events: EventLog, store: Store, disk: LogDisk) -> Self {
        Services {
            known: Arc::default(),
            events,
            store,
            disk,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Service>> {
        self.known
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a service, wanted down. A second one of the same name is refused.
    pub fn add(&self, definition: Definition) -> anyhow::Result<Service> {
        let mut known = self.lock();
        let id = definition.id.clone();
        anyhow::ensure!(
            !known.contains_key(&id),
            "there is a service {id:?} already"
        );
        let log = LogRing::default();
        let service = Service::spawn(definition, log, self.events.clone(), self.store.clone());
        self.disk.follow(&id, service.log());
        known.insert(id, service.clone());
        Ok(service)
    }

    /// Adds machined itself, whose log is on its way to the disk already.
    pub fn add_machined(&self, log: LogRing) -> Service {
        let (events, store) = (self.events.clone(), self.store.clone());
        let service = Service::spawn(own::definition(), log, events, store);
        service.start();
        self.lock().insert(MACHINED.to_owned(), service.clone());
        service
    }

    /// Stops a service and forgets it.
    pub async fn remove(&self, id: &str) {
        let service = self.get(id);
        if let Some(service) = service {
            service.retire().await;
            self.lock().remove(id);
            self.store.remove::<ServiceFact>(id);
        }
    }

    /// A service by name.
    pub fn get(&self, id: &str) -> Option<Service> {
        self.lock().get(id).cloned()
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<Service> {
        self.lock().values().cloned().collect()
    }

    /// A service that the API may control.
    pub fn controllable(&self, id: &str, operation: &'static str) -> Result<Service, ControlError> {
        let service = self
            .get(id)
            .ok_or_else(|| ControlError::Unknown(id.to_owned()))?;
        if service.definition().controllable {
            Ok(service)
        } else {
            Err(ControlError::NotControllable {
                id: id.to_owned(),
                operation,
            })
        }
    }

    /// Stops all services that the machine does not need for itself, side by side.
    pub async fn stop_workloads(&self) {
        let workloads = self
            .list()
            .into_iter()
            .filter(|service| service.definition().controllable);
        futures_util::future::join_all(
            workloads.map(|service| async move { service.stop().await }),
        )
        .await;
    }

    /// Starts what `stop_workloads` stopped.
    pub fn start_workloads(&self) {
        for service in self.list() {
            service.start();
        }
    }
}
