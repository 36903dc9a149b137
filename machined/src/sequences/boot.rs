//! The boot of a generation: config, API and network first, then EPHEMERAL, the clock and services; then the verdict.
//!
//! The API comes up as early as it can, and stays up whatever fails after it: a machine that cannot be asked what is
//! wrong with it cannot be mended from afar.
//!
//! What a version on trial has to prove, and what follows from its success or failure, is decided in `upgrade::trial`; here the facts
//! are gathered, the steps run, and the decisions carried out.

mod reachable;
mod useful;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::install::install_without_config;
use super::settings::{self, When};
use super::steps::{find_config, release_memory};
use super::system_services::{self, Moment, SystemService};
use super::upgrade::trial_record;
use super::{Sequence, emit_failure, run};
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

/// What a generation begins with.
pub struct BootArguments {
    /// Why it was started.
    pub start: StartReason,
    /// What was given up for it, on a rollback.
    pub rollback: Option<Rollback>,
    /// When init gives it up unless it has become healthy.
    pub deadline: Instant,
    /// What the previous generation left.
    pub handover: Option<Handover>,
    /// Services of the system itself.
    pub system_services: Vec<SystemService>,
}

/// The upgrade that did not work, in init's words.
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
    /// When init gives the generation up unless it has become healthy.
    deadline: Instant,
    /// What the previous generation left; empty if it left nothing.
    handover: Handover,
    early: EarlyStanding,
    /// Whether the hand-over to a machined that is started again is kept up to date.
    handover_kept: Once,
}

/// Boots the generation and tells init how it went.
pub async fn boot(machine: Arc<Machine>, arguments: BootArguments) {
    // Nobody else can hold it yet: the API is not up.
    let mut lock = machine.operations.lock_when_free(Operation::Boot).await;
    let BootArguments {
        start,
        rollback,
        deadline,
        handover,
        mut system_services,
    } = arguments;
    let mut boot = Boot::gather(&machine, start, deadline, handover).await;
    // First in the history, so that a client that waits for the upgrade sees its failure before anything else.
    boot.tell_last_upgrade(rollback.as_ref());
    machine.enter(MachineStage::Booting);
    if start == StartReason::Restart {
        machine.disk.adopt();
    }

    let of_system = system_services::take(&mut system_services, Moment::WithNetwork);
    let reached = boot.run(reachable::sequence(&boot, of_system)).await;
    // What comes next takes as long as disks and the network do, and whoever waits can ask.
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
    tokio::spawn(release_memory::after_boot(machine.clone()));
    status::follow(machine).await;
}

impl Boot {
    /// Gathers what is known before there is a disk: that may be slow or silent.
    async fn gather(
        machine: &Arc<Machine>,
        start: StartReason,
        deadline: Instant,
        handover: Option<Handover>,
    ) -> Self {
        let handed_over = HandedOver::of(handover.as_ref(), &machine.running.version);
        let counter = match depends_on_loader(start, handed_over) {
            true => trial_record::loaders_word(machine).await.0,
            false => Counter::NotCounted,
        };
        Self {
            machine: machine.clone(),
            start,
            deadline,
            handover: handover.unwrap_or_default(),
            early: EarlyStanding::of(start, handed_over, counter),
            handover_kept: Once::new(),
        }
    }

    async fn run(&self, sequence: Sequence) -> anyhow::Result<()> {
        run(sequence, &ActorId::default(), &self.machine.events).await
    }

    /// Has a machine without a config wait for one, in maintenance mode. Others may hold the lock meanwhile.
    async fn wait_for_config(&self, lock: OperationLock) -> OperationLock {
        let machine = &self.machine;
        // Where the config is to come from a server, so is what is to be installed.
        if self.start == StartReason::Boot && !find_config::has_server() {
            install_without_config(machine).await;
        }
        drop(lock);
        let asking = find_config::keep_asking(machine);
        status::maintenance(machine).await;
        drop(asking);
        apply_network(machine).await;
        machine.operations.lock_when_free(Operation::Boot).await
    }

    /// Does what the config asks for. Gives how that went, and the record of an upgrade that this boot is to finish.
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
            // A disk may not answer, or be repaired for hours: whoever has no use for that can end it. The next boot does all again.
            false => lock.interruptible(steps).await?,
        };
        Ok((outcome, tried.try_recv().ok()))
    }

    /// Decides what follows from the steps and, on trial, from the gate.
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

    /// Says why the previous upgrade is not there, to whoever asked for it.
    fn tell_last_upgrade(&self, rollback: Option<&Rollback>) {
        if let Some(rollback) = rollback {
            self.tell_rollback(rollback);
        }
        if self.early == EarlyStanding::Interrupted {
            self.tell_interruption();
        }
    }

    /// An upgrade that machined crashed in. Its image may be as good as any.
    fn tell_interruption(&self) {
        let Some(upgrade) = &self.handover.upgrade else {
            return;
        };
        let reason = format!(
            "the upgrade to {} was given up: machined died, and {} runs",
            upgrade.to, self.machine.running.version
        );
        tracing::error!("{reason}");
        emit_failure(&self.machine.events, &upgrade.actor, "upgrade", reason);
    }

    /// An upgrade that init took back. Its image is remembered.
    fn tell_rollback(&self, rollback: &Rollback) {
        let Rollback {
            cause,
            failed_version,
        } = rollback;
        let machine = &self.machine;
        tracing::error!(
            "version {failed_version} was given up, {} runs again: {cause}",
            machine.running.version
        );
        let Some(upgrade) = &self.handover.upgrade else {
            return;
        };
        machine
            .upgrades
            .failed_images()
            .remember(upgrade.digest.clone(), cause.clone());
        let reason = format!("version {failed_version} was rolled back: {cause}");
        emit_failure(&machine.events, &upgrade.actor, "upgrade", reason);
    }
}

/// Has the network be as the config says, or as it is without one.
async fn apply_network(machine: &Machine) {
    match machine.config() {
        Some(_) => settings::apply_at(machine, When::WithConfig).await,
        None => machine.network.set_default_spec(),
    }
}

/// Where the machine's records are: on STATE, or with everything else in memory.
fn records(machine: &Machine) -> PathBuf {
    let state = machine.disk.state().unwrap_or(Path::new("/var/lib/instar"));
    state.to_owned()
}

/// The moment that lies so long before a deadline; half-way to it where the deadline is near, so that a short one leaves time as well.
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
