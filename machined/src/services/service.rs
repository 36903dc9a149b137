//! One service: what it is, how it is, and what is wanted of it. Its actor does the work.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::desired_state::DesiredState;
use super::health::{HealthCheck, Probe};
use super::log_ring::LogRing;
use super::phase::Phase;
use super::state::ServiceStatus;
use super::workload::{Step, Workload};

/// Limit on the end of a service after SIGKILL, and on the end of the watch over one that lives on.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Limit on the wait for a service to stop, beside the time that the service has to end: its end after SIGKILL, and time to remove what is left
/// of it on a busy machine.
const STOPPING: Duration = Duration::from_secs(50);

/// Says whether the machine config of the next generation lets a service live through an upgrade, by its name. The error says why not, for
/// people.
pub type KeptByConfig<'a> = dyn Fn(&str) -> anyhow::Result<()> + Send + Sync + 'a;

/// Describes a service; its state is in [`ServiceStatus`].
pub struct Definition {
    /// Its name, unique on the machine.
    pub id: String,
    /// The process or container that it runs.
    pub workload: Arc<dyn Workload>,
    /// Conditions that must hold before it starts; described for people.
    pub depends_on: Vec<Dependency>,
    /// Its health check.
    pub health: Option<HealthCheck>,
    /// Whether the API may start and stop it.
    pub controllable: bool,
    /// Whether an upgrade is healthy only when this service is up.
    pub required: bool,
    /// Whether it must also be up if it was up before the upgrade.
    pub judged: bool,
    /// Whether it is restarted when its health check says that it is unhealthy.
    pub restart_unhealthy: bool,
}

/// A condition that a service waits for.
pub struct Dependency {
    /// As in "waiting for the network".
    pub what: String,
    /// Ends when the condition holds. Made anew for each wait.
    pub wait: Box<dyn Fn() -> Step<'static, ()> + Send + Sync>,
}

/// Why a service that is to stop is still up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotStopped {
    /// Another caller wants it up.
    #[error("it was started again while it was being stopped")]
    StartedAgain,
    /// The service, or the cleanup after it, hangs.
    #[error("it has not ended within {0} s, and ends when it can")]
    InTime(u64),
}

/// The handle of a service's actor.
#[derive(Clone)]
pub struct Service {
    pub(super) definition: Arc<Definition>,
    pub(super) desired: watch::Sender<DesiredState>,
    pub(super) status: watch::Sender<ServiceStatus>,
    pub(super) log: LogRing,
}

impl Service {
    /// A service without an actor, wanted down.
    pub(super) fn new(definition: Definition, log: LogRing) -> Service {
        let checked = definition.health.is_some();
        Service {
            definition: Arc::new(definition),
            desired: watch::channel(DesiredState::default()).0,
            status: watch::channel(ServiceStatus::new(checked)).0,
            log,
        }
    }

    /// Returns the definition.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns the newest output.
    pub fn log(&self) -> &LogRing {
        &self.log
    }

    /// Returns the current status.
    pub fn status(&self) -> ServiceStatus {
        self.status.borrow().clone()
    }

    /// Returns the state in one line: the phase and the last event.
    pub fn summary(&self) -> String {
        let status = self.status();
        let last = status.history.back();
        format!(
            "service {}: {}: {}",
            self.definition.id,
            status.phase.name(),
            last.map_or("", |last| last.message.as_str())
        )
    }

    /// Marks it as wanted up; a service that is held starts when it is released.
    pub fn start(&self) {
        self.desired.send_modify(DesiredState::start);
    }

    /// Marks it as wanted down and waits until it is down, within a time limit.
    pub async fn stop(&self) -> Result<(), NotStopped> {
        self.desired.send_modify(DesiredState::stop);
        self.rest().await
    }

    /// Whether its operator wants it up, also while the machine keeps it down.
    pub fn is_wanted_up(&self) -> bool {
        self.desired.borrow().is_wanted_up()
    }

    /// Waits until its process has ended, and has it start again, if its operator wants it up then.
    pub(super) async fn run_anew(&self) -> Result<(), NotStopped> {
        /// Ends the moment between two runs, also if the caller no longer waits.
        struct Between<'a>(&'a Service);
        impl Drop for Between<'_> {
            fn drop(&mut self) {
                self.0.desired.send_modify(|desired| desired.restart(false));
            }
        }
        self.desired.send_modify(|desired| desired.restart(true));
        let _between = Between(self);
        self.rest().await
    }

    /// Stops it and ends its actor, for good. An error means that it needs longer to end.
    pub async fn retire(&self) -> Result<(), NotStopped> {
        self.desired.send_modify(DesiredState::retire);
        self.rest().await
    }

    /// Checks that it runs and may live through a change of generations.
    pub(super) fn outlives_generation(&self, kept: &KeptByConfig<'_>) -> anyhow::Result<()> {
        let status = self.status();
        let phase = status.phase;
        anyhow::ensure!(phase == Phase::Running, "it is {}", phase.name());
        // The generation that gives itself up before it looks after a service has no say: it may not even see the disk that the service uses.
        match status.left {
            true => Ok(()),
            false => {
                let workload = &self.definition.workload;
                // The config says more than a container, which may have been started as one that ends only because the config said so. Of
                // a part of the generation it knows nothing.
                if !workload.is_part_of_generation() {
                    kept(&self.definition.id)?;
                }
                workload.outlives_generation()
            }
        }
    }

    /// Leaves it running unattended until it is released; returns false if its watch does not end in time.
    pub(super) async fn leave(&self) -> bool {
        self.desired.send_modify(DesiredState::leave);
        let is_left = |status: &ServiceStatus| status.left && !status.read;
        let left = self.until(|status| is_left(status) || status.phase != Phase::Running);
        let in_time = tokio::time::timeout(GRACE, left).await.is_ok();
        in_time && is_left(&self.status())
    }

    /// Keeps it down until it is released, whatever its operator asks for.
    pub(super) fn hold(&self) {
        self.desired.send_modify(DesiredState::hold);
    }

    /// Takes its time to end from it, also if it is ending already: it is killed.
    pub(super) fn hurry(&self) {
        self.desired.send_modify(DesiredState::hurry);
    }

    /// Ends the hold: the operator's wish counts again.
    pub(super) fn release(&self) {
        self.desired.send_modify(DesiredState::release);
    }

    /// Whether it is kept down.
    pub(super) fn is_held(&self) -> bool {
        self.desired.borrow().is_held()
    }

    /// Waits until it is down. Only a service that is wanted down stays down long enough to be seen.
    pub(super) async fn rest(&self) -> Result<(), NotStopped> {
        let mut desired = self.desired.subscribe();
        let ended = async {
            tokio::select! {
                biased;
                () = self.until(|status| status.phase.is_at_rest()) => Ok(()),
                _ = desired.wait_for(|desired| desired.is_up()) => Err(NotStopped::StartedAgain),
            }
        };
        let limit = self.definition.workload.stop_timeout() + STOPPING;
        let ended = tokio::time::timeout(limit, ended).await;
        ended.unwrap_or(Err(NotStopped::InTime(limit.as_secs())))
    }

    /// Waits until it is up.
    pub async fn up(&self) {
        self.until(ServiceStatus::is_up).await;
    }

    /// Returns whether it stays up: a service with a health check of its own passes it several times more; any other one has run for
    /// `time`, time under an earlier machined included. False as soon as it goes down.
    pub async fn proves_steady(&self, time: Duration) -> bool {
        let proof = async {
            match &self.definition.health {
                Some(check) if check.probe == Probe::Own => {
                    check.passes_again(self.definition.workload.as_ref()).await
                }
                _ => {
                    tokio::time::sleep(time.saturating_sub(self.status().has_run())).await;
                    true
                }
            }
        };
        tokio::select! {
            biased;
            () = self.until(|status| !status.is_up()) => false,
            proved = proof => proved,
        }
    }

    pub(super) async fn until(&self, holds: impl Fn(&ServiceStatus) -> bool) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self
            .status
            .subscribe()
            .wait_for(|status| holds(status))
            .await;
    }
}
