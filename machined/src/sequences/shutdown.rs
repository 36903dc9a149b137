//! Reboot and shutdown: the same phases, with another end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use super::steps::leave::{ANSWER_FIRST, leave};
use super::steps::up::up_before_leaving;
use super::steps::{boot_assets, stop};
use super::upgrade::trial_record;
use super::{Sequence, run, waiting_version};
use crate::init_link::End;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation, OperationLock};
use crate::store::MachineStage;
use crate::store::event_log::ActorId;

/// Timeout for the note that a start is asked for.
const NOTED: Duration = Duration::from_secs(5);
/// Timeout for the note on the version that the next boot tries: a disk that is silent must not hold up a reboot by force.
const MARKED: Duration = Duration::from_secs(45);

/// Whether a reboot or shutdown waits for other operations, and for services to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// It is refused while another operation runs, and services have their time to end.
    Waits,
    /// It interrupts an operation that has changed nothing yet, such as an upgrade whose image is being pulled, and services are killed.
    Force,
}

fn lock(machine: &Machine, operation: Operation, urgency: Urgency) -> Result<OperationLock, Busy> {
    match urgency {
        Urgency::Waits => machine.lock_operation(operation),
        Urgency::Force => machine.operations.seize(operation),
    }
}

/// Reboots the machine, kernel included.
pub fn reboot(machine: &Arc<Machine>, urgency: Urgency) -> Result<ActorId, Busy> {
    let lock = lock(machine, Operation::Reboot, urgency)?;
    Ok(reboot_with(machine, lock, urgency))
}

/// Reboots the machine as the last step of the operation that holds the lock: no other operation comes in between.
pub(super) fn reboot_next(machine: &Arc<Machine>, lock: OperationLock) -> ActorId {
    reboot_after(machine, lock, None)
}

/// The same for a caller that has stopped services already, with those that were up before that.
pub(super) fn reboot_after(
    machine: &Arc<Machine>,
    lock: OperationLock,
    up_before: Option<Vec<String>>,
) -> ActorId {
    let lock = lock.hand_over(Operation::Reboot);
    let (urgency, stage) = (Urgency::Waits, MachineStage::Rebooting);
    start_judged_by(machine, lock, urgency, stage, End::Reboot, up_before)
}

fn reboot_with(machine: &Arc<Machine>, lock: OperationLock, urgency: Urgency) -> ActorId {
    start(machine, lock, urgency, MachineStage::Rebooting, End::Reboot)
}

/// Stops the machine and powers it off.
pub fn shutdown(machine: &Arc<Machine>, urgency: Urgency) -> Result<ActorId, Busy> {
    let lock = lock(machine, Operation::Shutdown, urgency)?;
    Ok(start(
        machine,
        lock,
        urgency,
        MachineStage::ShuttingDown,
        End::PowerOff,
    ))
}

pub(super) fn start(
    machine: &Arc<Machine>,
    lock: OperationLock,
    urgency: Urgency,
    stage: MachineStage,
    end: End,
) -> ActorId {
    start_judged_by(machine, lock, urgency, stage, end, None)
}

fn start_judged_by(
    machine: &Arc<Machine>,
    lock: OperationLock,
    urgency: Urgency,
    stage: MachineStage,
    end: End,
    up_before: Option<Vec<String>>,
) -> ActorId {
    let actor = ActorId::new();
    let (machine, as_actor) = (machine.clone(), actor.clone());
    crate::base::task::spawn(async move {
        tokio::time::sleep(ANSWER_FIRST).await;
        // A kernel that is loaded already was judged before.
        if end != End::Kexec {
            waiting_version::judge_before_leaving(&machine, &lock).await;
        }
        go_down(&machine, urgency, (stage, end), up_before, &as_actor).await;
        drop(lock);
    });
    actor
}

/// Reboots the machine into what its next boot starts, which was judged already.
pub(super) async fn end_in_reboot(
    machine: Arc<Machine>,
    lock: OperationLock,
    up_before: Option<Vec<String>>,
    actor: ActorId,
) {
    let way = (MachineStage::Rebooting, End::Reboot);
    go_down(&machine, Urgency::Waits, way, up_before, &actor).await;
    drop(lock);
}

async fn go_down(
    machine: &Arc<Machine>,
    urgency: Urgency,
    (stage, end): (MachineStage, End),
    up_before: Option<Vec<String>>,
    actor: &ActorId,
) {
    let name = match end {
        End::PowerOff | End::Halt => "shutdown",
        End::Reboot | End::Kexec => "reboot",
    };
    machine.enter(stage);
    expect_start(machine).await;
    let up = up_before_leaving(machine, up_before).await;
    if mark_started(machine, up, actor).await && end != End::Kexec {
        offer_staged_loader(machine).await;
    }
    let phases = vec![
        stop::stop_services(machine, urgency),
        stop::unmount(machine),
        stop::stop_everything(),
    ];
    // None of these phases fails: init stops what they could not stop in order.
    let _ = run(Sequence { name, phases }, actor, &machine.events).await;
    leave(machine, end).await;
}

/// Notes that the next start was asked for: it does not count against a release of a channel that has to prove itself.
async fn expect_start(machine: &Arc<Machine>) {
    // In a task of its own: what it writes is not given up halfway.
    let noting = crate::base::task::spawn({
        let machine = machine.clone();
        async move { machine.follow.expect_start(&machine.init).await }
    });
    if timeout(NOTED, noting).await.is_err() {
        tracing::warn!(
            "a release that has to prove itself may be blamed for this restart: STATE has not taken the note within {} s",
            NOTED.as_secs()
        );
    }
}

/// Has the version that the next boot tries measured by what is up now. Returns whether there is such a version.
async fn mark_started(machine: &Machine, up: Vec<String>, actor: &ActorId) -> bool {
    let marking = trial_record::mark_started(machine, up, actor);
    let marked = timeout(MARKED, marking).await;
    let marked = marked.context("STATE does not answer").flatten();
    marked.unwrap_or_else(|error| {
        tracing::warn!("a staged version is measured by what was up earlier: {error:#}");
        false
    })
}

/// Makes the firmware try the loader of a staged version. A version that could start without a reboot has not done so when it was staged,
/// because it was unknown then that the firmware would start the machine.
async fn offer_staged_loader(machine: &Machine) {
    if let Err(error) = boot_assets::try_next_loader(machine).await {
        tracing::warn!("the old boot loader stays: {error:#}");
    }
}
