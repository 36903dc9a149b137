//! An upgrade that is prepared ahead: puts its version beside the running one once its images are pinned, and shows how far it is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::stage::stage_prepared;
use super::upgrade::trial_record;
use crate::base::error_chain::chain;
use crate::base::task;
use crate::machine::Machine;
use crate::pins::{Preparation, PreparationFact, Progress};

/// Shows the preparation as a resource, or that there is none; returns the time until its version may be written.
pub(super) fn show(machine: &Machine) -> Option<Duration> {
    let (store, id) = (&machine.store, PreparationFact::ID);
    let Some(preparation) = machine.pins.preparation() else {
        store.remove::<PreparationFact>(id);
        return None;
    };
    let known = store.get::<PreparationFact>(id);
    let known = known.filter(|fact| fact.preparation.image == preparation.image);
    let progress = match preparation.is_written {
        true => Progress::Prepared,
        false => known.map(|fact| fact.progress).unwrap_or_default(),
    };
    let pause = progress.pause(SystemTime::now());
    let fact = PreparationFact {
        preparation,
        progress,
    };
    store.put(id, fact);
    pause
}

/// Ends a preparation whose version was written and waits for no start any more, as after a trial that failed. Its images stay pinned.
pub(super) async fn end_if_gone(machine: &Machine) {
    let Some(preparation) = machine.pins.preparation().filter(|it| it.is_written) else {
        return;
    };
    // A machine with a disk has the record on it.
    if machine.disk.status().borrow().disk.is_some() && machine.disk.state().is_none() {
        return;
    }
    match trial_record::record(machine) {
        Ok(None) if machine.upgrades.prepared_version().is_none() => {}
        Ok(_) => return,
        Err(error) => {
            let version = &preparation.version;
            tracing::warn!("nobody knows whether {version} still waits for its start: {error:#}");
            return;
        }
    }
    tracing::info!(
        "{} was prepared and waits for no start any more; its images stay pinned until an upgrade has been committed",
        preparation.version
    );
    machine.pins.forget_preparation().await;
}

/// Puts the version beside the running one; returns the time until the next try, if there has to be one.
pub(super) async fn write(machine: &Arc<Machine>, preparation: Preparation) -> Option<Duration> {
    let image = &preparation.image;
    // Another version runs by now: this one is on trial, or was taken back.
    if preparation.during != machine.running.version {
        return None;
    }
    let before = machine.store.get::<PreparationFact>(PreparationFact::ID)?;
    machine.store.put(
        PreparationFact::ID,
        PreparationFact {
            preparation: preparation.clone(),
            progress: Progress::Writing,
        },
    );
    // In a task of its own: it comes to its end, whatever changes meanwhile.
    let staging = {
        let (machine, preparation) = (machine.clone(), preparation.clone());
        task::spawn(async move { stage_prepared(&machine, &preparation).await })
    };
    let failure = match staging.await {
        Ok(Ok(staged)) => {
            tracing::info!("{} is prepared: {}", staged.version, staged.start());
            machine.pins.note_written(&preparation).await;
            None
        }
        Ok(Err(error)) => Some(chain(&error)),
        Err(error) => Some(chain(&error)),
    };
    if let Some(why) = &failure {
        tracing::warn!(
            "{} from {image} is not prepared: {why}",
            preparation.version
        );
    }
    let progress = before.progress.after_try(failure, SystemTime::now());
    let pause = progress.pause(SystemTime::now());
    let is_written = progress == Progress::Prepared;
    machine.store.put(
        PreparationFact::ID,
        PreparationFact {
            preparation: Preparation {
                is_written,
                ..preparation
            },
            progress,
        },
    );
    pause
}
