//! The boot of a generation: config, API and network first, then EPHEMERAL, the clock and services; then the verdict.
//!
//! The API comes up as early as it can, and stays up whatever fails after it: a machine that cannot tell its problem cannot be repaired
//! from afar.
//!
//! `upgrade::trial` decides what a version on trial has to prove and how the machine goes on after its success or failure; the boot gathers
//! the facts, runs the steps, and carries out the decisions.

mod last_upgrade;
mod reachable;
mod useful;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::install::install_without_config;
use super::settings::{self, When};
use super::steps::{find_config, release_memory};
use super::system_services::{self, Moment, SystemService};
use super::upgrade::current_handover::CurrentHandover;
use super::upgrade::trial_record;
use super::{Sequence, network, run};
use crate::init_link::StartReason;
use crate::machine::Machine;
use crate::operation_lock::{Interrupted, Operation, OperationLock};
use crate::status;
use crate::store::MachineStage;
use crate::store::event_log::ActorId;
use crate::upgrade::trial::{
    Counter, EarlyStanding, HandedOver, Next, Standing, depends_on_loader, is_from_the_loader,
};
use crate::upgrade::{Handover, UpgradeRecord};

/// The facts that a generation begins with.
pub struct BootArguments {
    /// Why it was started.
    pub start: StartReason,
    /// The version that was given up for it, on a rollback.
    pub rollback: Option<Rollback>,
    /// Deadline by which the generation must be healthy; after it, init gives the generation up.
    pub deadline: Instant,
    /// The hand-over of the previous generation.
    pub handover: Option<Handover>,
    /// Services of the system itself.
    pub system_services: Vec<SystemService>,
}

/// The upgrade that failed, as init reports it.
pub struct Rollback {
    /// How it failed.
    pub cause: String,
    /// The version that was given up.
    pub failed_version: String,
}

/// A boot, and the facts that it knows from the beginning.
struct Boot {
    machine: Arc<Machine>,
    start: StartReason,
    /// Deadline by which the generation must be healthy; after it, init gives the generation up.
    deadline: Instant,
    /// The hand-over of the previous generation; empty without one.
    handover: Handover,
    early: EarlyStanding,
    current_handover: CurrentHandover,
}

/// Boots the generation and reports its health to init.
pub async fn boot(machine: Arc<Machine>, arguments: BootArguments) {
    // The lock is free: the API is not up yet, so no caller can have taken it.
    let mut lock = machine.operations.lock_when_free(Operation::Boot).await;
    let BootArguments {
        start,
        rollback,
        deadline,
        handover,
        mut system_services,
    } = arguments;
    let mut boot = Boot::gather(&machine, (start, deadline), handover, rollback.as_ref()).await;
    machine.enter(MachineStage::Booting);
    crate::base::task::spawn(network::follow(machine.clone()));
    if start == StartReason::Restart {
        machine.disk.adopt();
        machine.os_extensions.adopt();
        if let Err(error) = machine.etc_files.adopt() {
            tracing::warn!("files of extensions leave /etc for a moment: {error:#}");
        }
    }

    let of_system = system_services::take(&mut system_services, Moment::WithNetwork);
    let reached = boot.run(reachable::sequence(&boot, of_system)).await;
    // The next steps take as long as disks and the network do; meanwhile callers can ask the API.
    let mut is_healthy = !boot.early.has_deadline() && verdict::tell_healthy(&machine).await;
    let of_system = system_services::take(&mut system_services, Moment::OnceReachable);
    let shown = system_services::start(machine.clone(), of_system).await;
    let reached = reached.and(shown);
    if reached.is_ok() && machine.config().is_none() {
        let next = verdict::without_config(&boot).await;
        let is_kept = matches!(next, Next::Commit(_));
        is_healthy = verdict::carry_out(&boot, next, is_healthy).await;
        if !is_kept {
            return;
        }
        boot.early = boot.early.once_kept();
        lock = boot.wait_for_config(lock).await;
    }
    let (outcome, record) = match reached {
        Ok(()) => match boot.become_useful(&lock).await {
            Ok(ended) => ended,
            Err(interrupted) => {
                tracing::warn!("the boot is {interrupted}");
                return status::follow(machine).await;
            }
        },
        failed => (failed, None),
    };

    let next = boot.decide(outcome, record).await;
    verdict::carry_out(&boot, next, is_healthy).await;
    drop(boot);
    drop(lock);
    crate::base::task::spawn(release_memory::after_boot(machine.clone()));
    status::follow(machine).await;
}

impl Boot {
    /// Gathers the facts that are known without a disk, which may be slow or not answer. First in the history is how the last upgrade failed, so
    /// that a client that waits for the upgrade sees this before anything else.
    async fn gather(
        machine: &Arc<Machine>,
        (start, deadline): (StartReason, Instant),
        handover: Option<Handover>,
        rollback: Option<&Rollback>,
    ) -> Self {
        let handed_over = HandedOver::of(handover.as_ref(), &machine.running.version);
        let counter = match depends_on_loader(start, handed_over) {
            true => trial_record::loaders_word(machine).await.0,
            false => Counter::NotCounted,
        };
        let early = EarlyStanding::of(start, handed_over, counter);
        let handover = last_upgrade::tell(machine, early, handover, rollback);
        Self {
            machine: machine.clone(),
            start,
            deadline,
            early,
            current_handover: CurrentHandover::start(machine, handover.clone()),
            handover: handover.unwrap_or_default(),
        }
    }

    async fn run(&self, sequence: Sequence) -> anyhow::Result<()> {
        run(sequence, &ActorId::default(), &self.machine.events).await
    }

    /// Makes a machine without a config wait for one, in maintenance mode. Other operations may hold the lock meanwhile.
    async fn wait_for_config(&self, lock: OperationLock) -> OperationLock {
        let machine = &self.machine;
        // If a server provides the config, the config also decides what is installed.
        if self.start == StartReason::Boot && !find_config::has_server() {
            install_without_config(machine).await;
        }
        drop(lock);
        // Until there is a config, there is no disk for logs.
        machine.log_disk.settle();
        let asking = find_config::keep_asking(machine);
        status::maintenance(machine).await;
        drop(asking);
        apply_network(machine).await;
        machine.operations.lock_when_free(Operation::Boot).await
    }

    /// Carries out the config. Returns the outcome, and the record of an upgrade that this boot has to finish.
    ///
    /// # Errors
    /// A more urgent operation has taken the lock, and the boot ends here.
    async fn become_useful(
        &self,
        lock: &OperationLock,
    ) -> Result<(anyhow::Result<()>, Option<UpgradeRecord>), Interrupted> {
        let (sender, mut tried) = oneshot::channel();
        let steps = self.run(useful::sequence(self, sender));
        let outcome = match self.early.has_deadline() {
            true => steps.await,
            // A disk may not answer, or be under repair for hours: a more urgent operation may end the wait. The next boot starts all over.
            false => lock.interruptible(steps).await?,
        };
        Ok((outcome, tried.try_recv().ok()))
    }

    /// Decides how the generation goes on after the steps and, on trial, the gate.
    async fn decide(&self, outcome: anyhow::Result<()>, record: Option<UpgradeRecord>) -> Next {
        let record = match record {
            None if is_from_the_loader(self.start) => {
                trial_record::of_counted_start(&self.machine, self.start).await
            }
            record => record,
        };
        let standing = Standing::of(self.early, &self.handover, record);
        let mut outcome = outcome.map_err(|failed| format!("{failed:#}"));
        if outcome.is_ok()
            && let Some(services) = standing.services_at_gate()
        {
            let services = services.to_vec();
            outcome = verdict::wait_at_gate(&self.machine, services, self.deadline).await;
        }
        standing.next(outcome)
    }
}

/// Sets up the network as the config says, or the default one without a config.
async fn apply_network(machine: &Machine) {
    match machine.config() {
        Some(_) => settings::apply_at(machine, When::WithConfig).await,
        None => machine.network.set_default_spec(),
    }
}

/// Returns the directory of the machine's records: on STATE, or in memory without STATE.
pub(super) fn records(machine: &Machine) -> PathBuf {
    let state = machine.disk.state().unwrap_or(Path::new("/var/lib/instar"));
    state.to_owned()
}

/// Returns the time `time` before a deadline, or half-way to a near deadline, so that some time is left for both parts.
fn before(deadline: Instant, time: Duration) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    deadline.checked_sub(time.min(left / 2)).unwrap_or(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_short_deadline_leaves_half_of_its_time() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(before(now + 300 * second, 20 * second), now + 280 * second);
        assert_eq!(before(now + 40 * second, 20 * second), now + 20 * second);
        assert_eq!(before(now + 10 * second, 20 * second), now + 5 * second);
        assert_eq!(before(now, 20 * second), now);
    }
}
