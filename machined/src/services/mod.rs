//! The machine's services: processes of the rootfs and containers of the config, kept up and watched.

mod actor;
mod attention;
mod carried;
mod cgroup;
mod container;
mod desired_state;
mod health;
mod log_disk;
mod log_files;
mod log_ring;
pub mod one_shot;
mod own;
mod own_process;
mod past;
mod phase;
mod restart;
mod service;
mod service_events;
mod state;
mod workload;
#[cfg(test)]
pub(crate) mod workload_for_tests;

use attention::Attention;
pub use cgroup::Cgroup;
pub use container::{ContainerWorkload, output_name};
pub use health::{HealthCheck, Probe, reach};
pub use log_disk::LogDisk;
pub use log_files::{OldLines, start_of_last};
pub use log_ring::{LogRing, Older, Reader as LogReader, Tail};
pub use own::MACHINED;
pub(crate) use own_process::OwnProcess;
pub use phase::Phase;
pub use service::{Definition, Dependency, KeptByConfig, NotStopped, Service};
use service_events::Surroundings;
pub use service_events::{timestamp, wire_health};
pub use state::{Health, ServiceStatus};
pub use workload::{Adopted, Running, Signal, Step, Workload};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::base::lock::Lock as _;
use crate::store::event_log::EventLog;
use crate::store::{MachineStatus, ServiceFact, Store};

/// The begin of the announcement that a service ends with an upgrade.
const ENDS: &str = "ends with this upgrade";
/// The announcement that it does not.
const RUNS_ON: &str = "runs on: the upgrade failed";

/// All services; clones share them.
#[derive(Clone)]
pub struct Services {
    known: Arc<Mutex<Known>>,
    surroundings: Surroundings,
}

#[derive(Default)]
struct Known {
    /// How far services are looked after that an earlier machined left running.
    attention: watch::Sender<Attention>,
    services: BTreeMap<String, Service>,
    /// The machine is being taken down: every service that the API controls is held.
    held: bool,
    /// Services that run on unattended, into the next generation.
    left: Vec<String>,
    /// Why running services end with this generation.
    ended: BTreeMap<String, String>,
    /// Services that finish their open calls before the next generation, each with its time limit.
    drained: Vec<(&'static str, Duration)>,
}

/// Why a service could not be controlled.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no service of this name.
    #[error("there is no service {0:?}; the list of services has the names")]
    Unknown(String),
    /// The machine needs the service to be reachable.
    #[error("service {id:?} doesn't support {operation} operation via API")]
    NotControllable {
        /// Its name.
        id: String,
        /// `start`, `stop` or `restart`.
        operation: &'static str,
    },
    /// The machine is being taken down.
    #[error(
        "service {id:?} cannot be started now: the machine is {stage}, and its services stay down; if that fails, those come up again that are wanted up"
    )]
    Held {
        /// Its name.
        id: String,
        /// The stage that the machine is in.
        stage: &'static str,
    },
    /// The restart could not be prepared: the service goes on as before.
    #[error(
        "{id} was not restarted, and goes on as it was (stop and start it to restart what it runs): {reason}"
    )]
    NotRenewed {
        /// Its name.
        id: String,
        /// Why.
        reason: String,
    },
    /// The service does not end.
    #[error("service {id:?} was told to end")]
    NotStopped {
        /// Its name.
        id: String,
        /// The reason.
        source: NotStopped,
    },
}

impl Services {
    /// Returns an empty set.
    pub fn new(events: EventLog, store: Store, disk: LogDisk) -> Self {
        Services {
            known: Arc::default(),
            surroundings: Surroundings {
                events,
                store,
                logs: disk,
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.locked()
    }

    /// Adds a service, wanted down. A second one of the same name is refused.
    pub fn add(&self, definition: Definition) -> anyhow::Result<Service> {
        self.add_as(definition, |definition, log, _| {
            actor::spawn(definition, log, self.surroundings.clone())
        })
    }

    /// Adds a service that an earlier machined left running, wanted up. It is shown as running at once, and looked after from
    /// [`attend`](Self::attend) on.
    pub fn add_living(&self, definition: Definition) -> anyhow::Result<Service> {
        self.add_as(definition, |definition, log, attention| {
            actor::spawn_living(definition, log, self.surroundings.clone(), attention)
        })
    }

    /// Lets services that were left running be looked after: each is adopted, or ended and started.
    pub fn attend(&self) {
        self.give_attention(Attention::All);
    }

    /// Has the output of services read that were left running, and that nobody can look after yet.
    pub fn read_output(&self) {
        self.give_attention(Attention::Output);
    }

    fn give_attention(&self, attention: Attention) {
        let given = &self.lock().attention;
        given.send_if_modified(|given| {
            let is_more = *given < attention;
            *given = attention.max(*given);
            is_more
        });
    }

    fn add_as(
        &self,
        definition: Definition,
        spawn: impl FnOnce(Definition, LogRing, watch::Receiver<Attention>) -> Service,
    ) -> anyhow::Result<Service> {
        let mut known = self.lock();
        let id = definition.id.clone();
        anyhow::ensure!(
            !known.services.contains_key(&id),
            "there is a service {id:?} already"
        );
        let service = spawn(definition, LogRing::default(), known.attention.subscribe());
        if known.held && service.definition().controllable {
            service.hold();
        }
        self.surroundings.logs.follow(&id, service.log());
        known.services.insert(id, service.clone());
        Ok(service)
    }

    /// Adds machined itself, whose log already goes to the disk.
    pub fn add_machined(&self, log: LogRing) -> Service {
        let service = actor::spawn(own::definition(), log, self.surroundings.clone());
        service.start();
        self.lock()
            .services
            .insert(MACHINED.to_owned(), service.clone());
        service
    }

    /// Stops a service and forgets it. Its last lines are written to the disk first: the next service of this name goes on in the same file.
    pub async fn remove(&self, id: &str) {
        let service = self.get(id);
        if let Some(service) = service {
            if let Err(why) = service.retire().await {
                tracing::warn!("service {id} is forgotten before its end: {why}");
            }
            let log = {
                let mut known = self.lock();
                known.services.remove(id);
                // Under the lock: from here on another service of this name may be added, with a log of its own.
                self.surroundings.logs.forget(id)
            };
            self.surroundings.store.remove::<ServiceFact>(id);
            if let Some(log) = log {
                log.close().await;
            }
        }
    }

    /// Removes these services side by side: each may take its whole time to end.
    pub async fn remove_all(&self, ids: impl IntoIterator<Item = &String>) {
        let ids = ids.into_iter();
        futures_util::future::join_all(ids.map(|id| self.remove(id))).await;
    }

    /// Returns the service of this name.
    pub fn get(&self, id: &str) -> Option<Service> {
        self.lock().services.get(id).cloned()
    }

    /// Returns all services, sorted by name.
    pub fn list(&self) -> Vec<Service> {
        self.lock().services.values().cloned().collect()
    }

    /// Returns the names of the running services by which a new version is judged: it is good when they are up again.
    pub fn up(&self) -> Vec<String> {
        let services = self.list();
        let up = services
            .iter()
            .filter(|service| service.definition().judged && service.status().is_up());
        up.map(|service| service.definition().id.clone()).collect()
    }

    /// Starts a service for the API.
    pub fn start(&self, id: &str) -> Result<(), ControlError> {
        let service = self.controllable(id, "start")?;
        self.refuse_if_held(&service)?;
        service.start();
        Ok(())
    }

    /// Stops a service for the API.
    pub async fn stop(&self, id: &str) -> Result<(), ControlError> {
        let service = self.controllable(id, "stop")?;
        service.stop().await.map_err(not_stopped(id))
    }

    /// Prepares a restart of a service while it runs, for example by pulling its image; a failure does not end the service.
    pub async fn renew(&self, id: &str) -> Result<(), ControlError> {
        let service = self.controllable(id, "restart")?;
        self.refuse_if_held(&service)?;
        let renewed = service.definition().workload.renew().await;
        renewed.map_err(|error| ControlError::NotRenewed {
            id: id.to_owned(),
            reason: format!("{error:#}"),
        })
    }

    /// Stops a service for the API and starts it again.
    pub async fn restart(&self, id: &str) -> Result<(), ControlError> {
        let service = self.controllable(id, "restart")?;
        self.refuse_if_held(&service)?;
        let stopped = service.stop().await;
        // However the stop went, the service is wanted up.
        service.start();
        stopped.map_err(not_stopped(id))?;
        // The machine may have begun to go down meanwhile: then the service starts when it is released.
        self.refuse_if_held(&service)
    }

    /// Stops a service and starts it again, for the machine itself. One that its operator wants down stays down, also if he stops it
    /// meanwhile.
    pub async fn restart_if_wanted(&self, id: &str) -> Result<(), ControlError> {
        let service = self.controllable(id, "restart")?;
        self.refuse_if_held(&service)?;
        if !service.is_wanted_up() {
            return Ok(());
        }
        service.run_anew().await.map_err(not_stopped(id))?;
        self.refuse_if_held(&service)
    }

    fn controllable(&self, id: &str, operation: &'static str) -> Result<Service, ControlError> {
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

    fn refuse_if_held(&self, service: &Service) -> Result<(), ControlError> {
        if !service.is_held() {
            return Ok(());
        }
        let status: Option<MachineStatus> = self.surroundings.store.get(MachineStatus::ID);
        Err(ControlError::Held {
            id: service.definition().id.clone(),
            stage: status.map_or("being taken down", |status| status.stage.doing()),
        })
    }

    /// Stops all services that the machine does not need for itself, in parallel, and keeps them down, later additions as well. A service
    /// that does not end in time is named in the log and left to the teardown, which kills it.
    pub async fn stop_workloads(&self) {
        let workloads = {
            let mut known = self.lock();
            known.held = true;
            let services = known.services.values();
            let workloads = services.filter(|service| service.definition().controllable);
            workloads.cloned().collect::<Vec<_>>()
        };
        rest_until(&workloads, None).await;
    }

    /// The same for a machine that goes down at once: services have no time to end in order, they are killed.
    pub async fn kill_workloads(&self) {
        for service in self.list() {
            if service.definition().controllable {
                service.hurry();
            }
        }
        self.stop_workloads().await;
    }

    /// Has [`drain`](Self::drain) end this service before the next generation, within this time.
    pub fn drain_before_next(&self, id: &'static str, within: Duration) {
        self.lock().drained.push((id, within));
    }

    /// Stops the services that have to answer their callers first, in parallel, and keeps them down. Returns the names of those that have
    /// not ended within their time limit. `start_workloads` releases them.
    pub async fn drain(&self) -> Vec<&'static str> {
        let drained = self.lock().drained.clone();
        let ends = drained.into_iter().map(|(id, within)| async move {
            let service = self.get(id)?;
            service.hold();
            let ended = tokio::time::timeout(within, service.rest()).await;
            ended.is_err().then_some(id)
        });
        let late = futures_util::future::join_all(ends).await;
        late.into_iter().flatten().collect()
    }

    /// Stops one service before the machine goes down, and keeps it down. Its operator's wish stays: `start_workloads` releases it.
    pub async fn hold_one(&self, id: &str) -> Result<(), ControlError> {
        let service = self.controllable(id, "stop")?;
        service.hold();
        service.rest().await.map_err(not_stopped(id))
    }

    /// Stops all services for a change of generations, except for those that can live through it: these run on unattended. They are left
    /// last, as nobody reads their output or restarts them from then on. Services that have not ended at `until` are left to the teardown.
    pub async fn leave_workloads(&self, until: Option<Instant>, kept: &KeptByConfig<'_>) {
        let (leaving, others) = self.divide(kept);
        rest_until(&others, until).await;
        // One that has ended meanwhile could start again with nobody to look after it.
        let (leaving, ended): (Vec<_>, Vec<_>) = leaving
            .into_iter()
            .partition(|service| service.outlives_generation(kept).is_ok());
        rest_until(&ended, until).await;
        let leaves = leaving.iter().map(|service| async move {
            let id = service.definition().id.clone();
            match service.leave().await {
                true => Some(id),
                false => {
                    tracing::warn!("service {id} ends with its generation: its watch does not");
                    None
                }
            }
        });
        let left = futures_util::future::join_all(leaves).await;
        self.lock().left = left.into_iter().flatten().collect();
    }

    /// Splits the services into those that live through a change of generations and those that end; services added later are held.
    fn divide(&self, kept: &KeptByConfig<'_>) -> (Vec<Service>, Vec<Service>) {
        self.lock().held = true;
        // Without the lock, which the API needs: a workload looks at files to answer.
        let services = self.list().into_iter();
        let workloads = services.filter(|service| service.definition().controllable);
        workloads.partition(|service| match service.outlives_generation(kept) {
            Ok(()) => true,
            Err(why) => {
                if service.status().phase == Phase::Running {
                    let id = service.definition().id.clone();
                    self.lock().ended.insert(id, format!("{why:#}"));
                }
                self.tell_end(service, &why);
                false
            }
        })
    }

    /// Returns the effect of an upgrade without a reboot on each running service that the API controls: it lives on, or ends for this
    /// reason.
    pub fn fates(&self, kept: &KeptByConfig<'_>) -> Vec<(Service, anyhow::Result<()>)> {
        let services = self.list().into_iter();
        let running = services.filter(|service| {
            service.definition().controllable && service.status().phase == Phase::Running
        });
        running
            .map(|service| {
                let fate = service.outlives_generation(kept);
                (service, fate)
            })
            .collect()
    }

    /// Announces to each service that ends with the upgrade that it will end, while it still runs.
    pub fn tell_ends(&self, kept: &KeptByConfig<'_>) {
        for (service, fate) in self.fates(kept) {
            if let Err(why) = fate {
                self.tell_end(&service, &why);
            }
        }
    }

    fn tell_end(&self, service: &Service, why: &anyhow::Error) {
        let message = format!("{ENDS}: {why:#}");
        self.surroundings.tell(service, &message);
    }

    /// Takes the announcement of [`tell_ends`](Self::tell_ends) back, of services that still run: the upgrade has failed.
    pub fn tell_run_on(&self) {
        for service in self.list() {
            if awaits_its_end(&service.status()) {
                self.surroundings.tell(&service, RUNS_ON);
            }
        }
    }

    /// Announces to the watchers of a service why it is about to end, or was ended before it was known here.
    pub fn tell(&self, id: &str, message: &str) {
        if let Some(service) = self.get(id) {
            self.surroundings.tell(&service, message);
        }
    }

    /// Returns the names of the services that run on unattended.
    pub fn left(&self) -> Vec<String> {
        self.lock().left.clone()
    }

    /// Returns the services that ran and end with this generation, each with the reason.
    pub fn ended(&self) -> BTreeMap<String, String> {
        self.lock().ended.clone()
    }

    /// Releases the services that `stop_workloads` holds: those that were wanted up start, those that were stopped on purpose stay down.
    pub fn start_workloads(&self) {
        {
            let mut known = self.lock();
            known.held = false;
            known.left.clear();
            known.ended.clear();
        }
        for service in self.list() {
            service.release();
        }
    }
}

/// Whether a service runs, and the last that was announced of an upgrade in this run is its end. One that was left running is shown again when
/// it is taken back.
fn awaits_its_end(status: &ServiceStatus) -> bool {
    let entries = status.history.iter().rev();
    let of_this_run = entries.take_while(|entry| entry.phase == Phase::Running);
    let mut told = of_this_run.map(|entry| entry.message.as_str());
    let told = told.find(|message| message.starts_with(ENDS) || *message == RUNS_ON);
    !status.left && told.is_some_and(|message| message != RUNS_ON)
}

/// Holds these services, and waits until they are down, at most until this time. A service that is late is named in the log.
async fn rest_until(services: &[Service], until: Option<Instant>) {
    for service in services {
        service.hold();
    }
    let ends = services.iter().map(|service| async move {
        let rest = service.rest();
        let rested = match until {
            Some(until) => tokio::time::timeout_at(until, rest).await,
            None => Ok(rest.await),
        };
        match rested {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::warn!("{}: {why}", service.summary()),
            Err(_) => tracing::warn!("{}: the generation ends before it", service.summary()),
        }
    });
    futures_util::future::join_all(ends).await;
}

fn not_stopped(id: &str) -> impl FnOnce(NotStopped) -> ControlError + '_ {
    |source| ControlError::NotStopped {
        id: id.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
