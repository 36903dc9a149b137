//! The reset: services stop, the requested parts of the disk are erased, and the machine reboots or powers off.

use std::sync::Arc;

use super::steps::leave::{ANSWER_FIRST, leave};
use super::steps::{disk, maintenance, resume, stop};
use super::upgrade::trial_record;
use super::{Phase, Sequence, Urgency, run};
use crate::disk::Users;
use crate::disk::{Label, Wipe};
use crate::init_link::End;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation};
use crate::store::MachineStage;
use crate::store::event_log::ActorId;

/// A request for a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetRequest {
    /// The parts of the disk to erase.
    pub wipe: Wipe,
    /// Whether services have their time to end; otherwise they are killed.
    pub graceful: bool,
    /// Boot again afterwards, instead of powering off.
    pub reboot: bool,
}

/// Why a reset was refused.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// Another operation is running.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// There is nothing to erase.
    #[error("this machine owns no disk, so nothing of it outlasts a reboot; use reboot instead")]
    NoDisk,
}

/// Starts a reset; interrupts an operation that has changed nothing yet.
pub fn reset(machine: &Arc<Machine>, request: ResetRequest) -> Result<ActorId, ResetError> {
    if machine.disk.status().borrow().disk.is_none() {
        return Err(ResetError::NoDisk);
    }
    let lock = machine.operations.seize(Operation::Reset)?;
    let actor = ActorId::new();
    let (machine, as_actor) = (machine.clone(), actor.clone());
    crate::base::task::spawn(async move {
        tokio::time::sleep(ANSWER_FIRST).await;
        machine.enter(MachineStage::Resetting);
        let end = if request.reboot {
            End::Reboot
        } else {
            End::PowerOff
        };
        let sequence = Sequence {
            name: "reset",
            phases: phases(&machine, request.wipe, request.graceful),
        };
        match run(sequence, &as_actor, &machine.events).await {
            Ok(()) => leave(&machine, end).await,
            Err(_) => resume::go_on(&machine).await,
        }
        drop(lock);
    });
    Ok(actor)
}

fn phases(machine: &Arc<Machine>, wipe: Wipe, graceful: bool) -> Vec<Phase> {
    let unmounted = machine.clone();
    let keeps_state =
        matches!(&wipe, Wipe::Partitions(partitions) if !partitions.contains(&Label::State));
    let unmount = Phase::of("unmount", async move {
        if !keeps_state {
            if let Err(error) = maintenance::open_after_reset(&unmounted).await {
                tracing::warn!(
                    "where EPHEMERAL stays, only administrators can bring the next config: {error:#}"
                );
            }
            // After the reset the running version starts over: without its record, a staged version would be unknown.
            trial_record::unstage(&unmounted).await?;
        }
        // Unlike before a reboot: partitions that are erased may not be in use.
        Ok(disk::unmount(&unmounted, Users::MustBeGone).await?)
    });
    let erased = machine.clone();
    let erase = Phase::of("reset", async move { Ok(erased.disk.wipe(wipe).await?) });
    let urgency = match graceful {
        true => Urgency::Waits,
        false => Urgency::Force,
    };
    vec![
        stop::stop_services(machine, urgency),
        unmount,
        erase,
        stop::stop_everything(),
    ]
}
