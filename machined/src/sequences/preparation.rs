//! An upgrade that is prepared ahead: puts its version beside the running one once its images are pinned, and shows how far it is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::timeout;

use super::emit_failure;
use super::stage::stage_prepared;
use super::upgrade::trial_record;
use crate::base::error_chain::chain;
use crate::base::task;
use crate::containers::ImageDigests;
use crate::intent;
use crate::machine::Machine;
use crate::operation_lock::Operation;
use crate::pins::{Preparation, PreparationFact, Progress};
use crate::store::event_log::ActorId;

/// Time limit for a registry to give a signature that is not kept with the image.
const ASK: Duration = Duration::from_secs(10);

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

/// Takes back a version that was written if the rules for images do not allow its installer's image any more. A registry that says nothing
/// changes nothing.
pub(super) async fn withdraw_if_denied(machine: &Arc<Machine>) {
    let Some(preparation) = machine.pins.preparation().filter(|it| it.is_written) else {
        return;
    };
    let Some(reason) = refusal(machine, &preparation).await else {
        return;
    };
    // In a task of its own: it comes to its end, whatever changes meanwhile.
    let machine = machine.clone();
    let withdrawn = task::spawn(async move { withdraw(&machine, preparation, reason).await });
    if let Err(error) = withdrawn.await {
        tracing::error!("a prepared version is not taken back: {}", chain(&error));
    }
}

async fn withdraw(machine: &Machine, preparation: Preparation, reason: String) {
    // While another operation runs, the next turn takes it back.
    let Ok(_lock) = machine.lock_operation(Operation::StageUpgrade) else {
        return;
    };
    if machine.pins.preparation().as_ref() != Some(&preparation) {
        return;
    }
    let reason = format!(
        "{} was prepared and is taken back, since the rules for images do not allow its installer {} any more: {reason}",
        preparation.version, preparation.image
    );
    if let Err(error) = trial_record::unstage(machine).await {
        tracing::error!("the next boot may try it: {error:#}: {reason}");
        return;
    }
    tracing::error!("{reason}");
    emit_failure(&machine.events, &ActorId::new(), "stageUpgrade", reason);
    machine.pins.forget_preparation().await;
}

/// Returns why the rules refuse the installer's image; none if they allow it, or that is not known.
async fn refusal(machine: &Machine, preparation: &Preparation) -> Option<String> {
    let image = machine.images.get(preparation.digest)?;
    let meaning = machine.pins.meaning(&preparation.image);
    let known = ImageDigests::of_pulled(&image, meaning.map(|meaning| meaning.image()));
    let puller = intent::puller(machine.config().as_deref());
    let admitted = known.admit(&puller, &preparation.image, image, &machine.images);
    match timeout(ASK, admitted).await {
        Ok(Err(error)) if !error.is_unreachable() => Some(chain(&error)),
        _ => None,
    }
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
