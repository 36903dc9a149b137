//! An upgrade that is prepared ahead: puts its version beside the running one once its images are pinned, and shows how far it is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::stage::{Staged, stage_prepared};
use super::upgrade::trial_record;
use crate::base::error_chain::chain;
use crate::base::task;
use crate::machine::Machine;
use crate::pins::{Preparation, PreparationFact, Progress};
use crate::upgrade::UpgradeError;

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
    match trial_record::record(machine).await {
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
    // Another one may have been asked for while the disk answered.
    machine.pins.forget_prepared(&preparation).await;
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
    let staging = {
        let (machine, preparation) = (machine.clone(), preparation.clone());
        async move { stage_prepared(&machine, &preparation).await }
    };
    let failure = stage_and_note(machine, &preparation, staging).await;
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

/// Stages the version and notes that it is written; returns why not. Both are done in a task of their own, which comes to its end, whatever
/// changes meanwhile: a version that is on the disk and not noted would be written again, and shown as one that is not there.
async fn stage_and_note(
    machine: &Arc<Machine>,
    preparation: &Preparation,
    staging: impl Future<Output = Result<Staged, UpgradeError>> + Send + 'static,
) -> Option<String> {
    let (machine, preparation) = (machine.clone(), preparation.clone());
    let staging = task::spawn(async move {
        let staged = staging.await?;
        tracing::info!("{} is prepared: {}", staged.version, staged.start());
        machine.pins.note_written(&preparation).await;
        Ok::<(), UpgradeError>(())
    });
    match staging.await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(chain(&error)),
        Err(error) => Some(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::sync::oneshot;

    use super::*;
    use crate::pins::Terms;
    use crate::sequences::image_pins::machine_for_tests::unbooted;
    use crate::store::event_log::ActorId;
    use crate::upgrade::Route;
    use crate::values::Digest;

    /// The limit on the end of a task.
    const SOON: Duration = Duration::from_secs(60);

    fn preparation() -> Preparation {
        Preparation {
            image: "r.io/os:v2".parse().unwrap(),
            digest: Digest::of(b"os"),
            version: "v0.2.0".to_owned(),
            images: Vec::new(),
            terms: Terms::default(),
            force: false,
            during: "v0.1.0".to_owned(),
            is_written: false,
        }
    }

    /// The config changes, so nobody waits for the end of the writing any more.
    #[tokio::test]
    async fn a_version_that_is_written_is_noted_also_when_nobody_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let preparation = preparation();
        let prepared = machine.pins.prepare(preparation.clone(), Vec::new()).await;
        prepared.unwrap();
        let (written, writing) = oneshot::channel();
        let staging = async move {
            writing.await.unwrap();
            Ok(Staged {
                version: "v0.2.0".to_owned(),
                actor: ActorId::new(),
                path: Route::Soft,
            })
        };
        let waits = stage_and_note(&machine, &preparation, staging);
        tokio::select! {
            biased;
            _ = waits => panic!("nothing is written yet"),
            () = tokio::task::yield_now() => {}
        }
        written.send(()).unwrap();
        let noted = async {
            while !machine.pins.preparation().unwrap().is_written {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, noted).await.unwrap();
    }
}
