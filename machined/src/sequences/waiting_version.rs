//! The version that waits for its start, judged once more when the rules for images change: staged, or prepared ahead. Whatever restarts the
//! machine starts it, so the rules cannot wait for that.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::emit_failure;
use super::upgrade::trial_record;
use crate::base::error_chain::chain;
use crate::base::task;
use crate::containers::ImageDigests;
use crate::intent;
use crate::machine::Machine;
use crate::oci::verification::VerificationError;
use crate::oci::{PullError, Puller};
use crate::operation_lock::Operation;
use crate::store::event_log::ActorId;
use crate::values::{ImageReference, ImageRule};

/// Time limit for a registry to give a signature that is not kept with the image.
const ASK: Duration = Duration::from_secs(10);
/// The time until the next call while the machine is busy, or tries a config.
const SOON: Duration = Duration::from_secs(10);

/// A version that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    version: String,
    /// The name of its installer's image.
    image: ImageReference,
    digests: ImageDigests,
}

/// The judge of the version that waits; it asks only about what it has not judged yet.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The version and the rules of the last judgement.
    judged: Option<(Waiting, Vec<ImageRule>)>,
    /// Those of which a registry has said nothing so far.
    open: Option<(Waiting, Vec<ImageRule>)>,
}

impl Judge {
    /// Takes back the version that waits if the rules for images do not allow its installer's image any more. A registry that says nothing, or
    /// does not have the image any more, changes nothing; it is asked again at the next call. Returns the time until that call if it should come soon.
    pub(super) async fn judge(&mut self, machine: &Arc<Machine>) -> Option<Duration> {
        let (configured, waiting) = (machine.config()?, find(machine).await?);
        let case = (waiting, configured.config.image_rules.clone());
        if self.judged.as_ref() == Some(&case) {
            return None;
        }
        // A config that is only tried may be gone in a minute; the version would be gone for good.
        let settled = machine.settled_config();
        if settled.is_some_and(|settled| !Arc::ptr_eq(&settled, &configured)) {
            return Some(SOON);
        }
        let (waiting, _) = &case;
        let puller = intent::puller(Some(&configured));
        let is_here = machine.images.get(waiting.digests.digest).is_some();
        let asked = admit(machine, &puller, waiting);
        let silent = match timeout(ASK, asked).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) if !is_refused(&error, is_here) => Some(chain(&error)),
            Ok(Err(error)) => {
                let (machine, waiting) = (machine.clone(), waiting.clone());
                // In a task of its own: it comes to its end, whatever changes meanwhile.
                let ended =
                    task::spawn(async move { withdraw(&machine, &waiting, &chain(&error)).await });
                if let Err(error) = ended.await {
                    tracing::error!("a version is not taken back: {}", chain(&error));
                }
                return Some(SOON);
            }
            Err(_) => Some(format!("no answer within {} s", ASK.as_secs())),
        };
        match silent {
            None => self.judged = Some(case),
            Some(why) if self.open.as_ref() != Some(&case) => {
                tracing::warn!(
                    "nobody knows whether the rules for images still allow {}, which waits for its start: it stays; {} is asked again: {why}",
                    waiting.version,
                    waiting.image
                );
                self.open = Some(case);
            }
            Some(_) => {}
        }
        None
    }
}

/// Returns the version that waits for its start: one that was prepared ahead, or one that was staged, in memory or on the disk.
async fn find(machine: &Machine) -> Option<Waiting> {
    if let Some(preparation) = machine.pins.preparation().filter(|it| it.is_written) {
        let known = machine.pins.meaning(&preparation.image);
        let digests = ImageDigests {
            digest: preparation.digest,
            index: None,
        };
        return Some(Waiting {
            version: preparation.version,
            image: preparation.image,
            digests: digests.or_index_of(known.map(|known| known.image())),
        });
    }
    let upgrade = match machine.upgrades.prepared_upgrade() {
        Some(upgrade) => upgrade,
        None => match trial_record::staged(machine).await {
            Ok(record) => record?.upgrade,
            Err(error) => {
                tracing::warn!("nobody knows whether a version waits for its start: {error:#}");
                return None;
            }
        },
    };
    // A record of an older version may lack the digest, and is judged at its start as ever.
    let (image, digests) = (upgrade.image.parse().ok()?, upgrade.digests()?);
    Some(Waiting {
        version: upgrade.to,
        image,
        digests,
    })
}

/// Asks the rules about its image: with what the store keeps, and else by its registry.
async fn admit(machine: &Machine, puller: &Puller, waiting: &Waiting) -> Result<(), PullError> {
    let Waiting { image, digests, .. } = waiting;
    if !puller.needs_signature(image)? {
        return Ok(());
    }
    match machine.images.get(digests.digest) {
        Some(here) => {
            let known = ImageDigests::of_pulled(&here, Some(*digests));
            known.admit(puller, image, here, &machine.images).await?;
        }
        None => {
            let resolved = digests.resolve(puller, image).await?;
            puller.verify(resolved).await?;
        }
    }
    Ok(())
}

/// Whether the rules refuse an image. A registry that has no signature of an image that is here refuses it; one that does not have the image
/// itself says nothing about it, nor does a disk that cannot be read.
fn is_refused(error: &PullError, is_here: bool) -> bool {
    let has_none = is_here && !error.is_unreachable();
    match error {
        PullError::Resolve(_) => has_none,
        PullError::NotVerified(why) => match **why {
            VerificationError::Refused(_) => true,
            VerificationError::Registry { .. } => has_none,
            VerificationError::Bundle { .. } => false,
        },
        _ => false,
    }
}

async fn withdraw(machine: &Machine, waiting: &Waiting, reason: &str) {
    // While another operation runs, the next call takes it back.
    let Ok(_lock) = machine.lock_operation(Operation::StageUpgrade) else {
        return;
    };
    // The operation before may have started or replaced it.
    if find(machine).await.as_ref() != Some(waiting) {
        return;
    }
    let reason = format!(
        "{} waited for its start and is taken back, since the rules for images do not allow its installer {} any more: {reason}",
        waiting.version, waiting.image
    );
    if let Err(error) = trial_record::unstage(machine).await {
        tracing::error!("the next boot may try it: {error:#}: {reason}");
        return;
    }
    tracing::error!("{reason}");
    emit_failure(&machine.events, &ActorId::new(), "stageUpgrade", reason);
    machine.pins.forget_preparation().await;
}
