//! An upgrade that is prepared ahead: puts its version beside the running one once its images are pinned, and shows how far it is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::stage::stage_prepared;
use crate::base::error_chain::chain;
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
        crate::base::task::spawn(async move { stage_prepared(&machine, &preparation).await })
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
