//! The version that waits for its start, judged once more when the rules for images or the keys for upgrades change, and before the machine
//! leaves: staged, or prepared ahead. Whatever restarts the machine starts it, so the rules cannot wait for that. `written_version` says which one
//! stays; one that is refused goes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::emit_failure;
use super::upgrade::trial_record;
use super::written_version::{Refused, WrittenVersion, ask_keys};
use crate::base::error_chain::chain;
use crate::base::task;
use crate::containers::ImageDigests;
use crate::intent::next_config;
use crate::machine::{Configured, Machine};
use crate::operation_lock::{Operation, OperationLock};
use crate::store::event_log::ActorId;
use crate::upgrade::{RootfsTrust, Route, Starts};
use crate::values::{ImageRule, PublicKey};

/// Time limit for the judgement before the machine leaves: a disk that is silent takes no version back, and must not hold up a reboot by force.
const BEFORE_LEAVING: Duration = Duration::from_secs(45);
/// The time until the next call while the machine is busy, or tries a config.
const SOON: Duration = Duration::from_secs(10);

/// What a version is judged by.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Law {
    rules: Vec<ImageRule>,
    keys: Vec<PublicKey>,
}

/// The judge of the version that waits; it asks only about what it has not judged yet.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The version of the last judgement, and what it was judged by.
    judged: Option<(WrittenVersion, Law)>,
}

impl Judge {
    /// Takes back the version that waits if the machine's config does not allow it any more. Returns the time until the next call if it should
    /// come soon.
    pub(super) async fn judge(&mut self, machine: &Arc<Machine>) -> Option<Duration> {
        let (configured, waiting) = (machine.config()?, find(machine).await?);
        let law = Law {
            rules: configured.config.image_rules.clone(),
            keys: configured.config.upgrade_keys.clone(),
        };
        let case = (waiting, law);
        if self.judged.as_ref() == Some(&case) {
            return None;
        }
        // A config that is only tried may be gone in a minute; the version would be gone for good.
        let settled = machine.settled_config();
        if settled.is_some_and(|settled| !Arc::ptr_eq(&settled, &configured)) {
            return Some(SOON);
        }
        let (waiting, _) = &case;
        match judgement(machine, waiting, Some(&configured)).await {
            Ok(Starts::AnyWay) => {
                self.judged = Some(case);
                None
            }
            judged => {
                let (machine, waiting) = (machine.clone(), waiting.clone());
                let is_refused = judged.is_err();
                // In a task of its own: it comes to its end, whatever changes meanwhile.
                let ended = task::spawn(async move { if_free(&machine, &waiting, judged).await });
                match ended.await {
                    Ok(true) if !is_refused => {
                        self.judged = Some(case);
                        return None;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!("a version is not taken back: {}", chain(&error));
                    }
                }
                Some(SOON)
            }
        }
    }
}

/// Takes back the version that waits for its start if the config with which the next boot begins does not allow it. To be called before the machine
/// leaves, by the holder of the lock.
pub(super) async fn judge_before_leaving(machine: &Machine, lock: &OperationLock) {
    let judged = async {
        let next = next_config::planned(machine).await;
        still_allowed(machine, lock, next.as_deref()).await;
    };
    if timeout(BEFORE_LEAVING, judged).await.is_err() {
        let limit = BEFORE_LEAVING.as_secs();
        tracing::error!(
            "a version that may wait for its start was not judged within {limit} s: the disk does not answer"
        );
    }
}

/// Takes back the version that waits for its start if this config does not allow it. It takes no longer than its questions may.
pub(super) async fn still_allowed(
    machine: &Machine,
    _lock: &OperationLock,
    next: Option<&Configured>,
) {
    if let Some(waiting) = find(machine).await {
        let judged = judgement(machine, &waiting, next).await;
        carry_out(machine, &waiting, judged).await;
    }
}

/// Returns the version that waits for its start: one that was prepared ahead, or one that was staged, in memory or on the disk.
async fn find(machine: &Machine) -> Option<WrittenVersion> {
    let upgrade = match machine.upgrades.prepared_upgrade() {
        Some(upgrade) => Some(upgrade),
        None => match trial_record::staged(machine).await {
            Ok(record) => record.map(|record| record.upgrade),
            Err(error) => {
                tracing::warn!("nobody knows whether a version waits for its start: {error:#}");
                None
            }
        },
    };
    if let Some(preparation) = machine.pins.preparation().filter(|it| it.is_written) {
        let known = machine.pins.meaning(&preparation.image);
        let digests = ImageDigests {
            digest: preparation.digest,
            index: None,
        };
        let digests = digests.or_index_of(known.map(|known| known.image()));
        return Some(WrittenVersion {
            version: preparation.version,
            upgrade,
            image: Some((preparation.image, digests)),
        });
    }
    upgrade.map(WrittenVersion::of_upgrade)
}

/// Judges a version by a config; returns how it may start, or why it may not and what to do.
async fn judgement(
    machine: &Machine,
    waiting: &WrittenVersion,
    by: Option<&Configured>,
) -> Result<Starts, String> {
    let told = |refused: Refused| match refused.is_unproven() {
        true => format!("{refused}; once that can be told, stage it again"),
        false => refused.to_string(),
    };
    waiting.ask_rules(machine, by).await.map_err(told)?;
    let Some(upgrade) = &waiting.upgrade else {
        return Ok(Starts::AnyWay);
    };
    let check =
        |trust: &RootfsTrust| trust.check_written(&upgrade.to, upgrade.evidence.written.as_ref());
    ask_keys(by, check).await.map_err(told)
}

/// Does what was judged, unless another operation runs: then the next call does it, or the operation itself if it is a reboot. Returns whether
/// it was done.
async fn if_free(
    machine: &Machine,
    waiting: &WrittenVersion,
    judged: Result<Starts, String>,
) -> bool {
    let Ok(_lock) = machine.lock_operation(Operation::StageUpgrade) else {
        return false;
    };
    // The operation before may have started or replaced it.
    if find(machine).await.as_ref() != Some(waiting) {
        return false;
    }
    carry_out(machine, waiting, judged).await;
    true
}

/// Does what was judged. To be called by the holder of the lock.
async fn carry_out(machine: &Machine, waiting: &WrittenVersion, judged: Result<Starts, String>) {
    match judged {
        Ok(starts) => {
            // The disk has it as well, if the machine boots from it.
            if let Route::Reboot(why) = starts.route(Route::Soft)
                && machine.upgrades.prepared_version().is_some()
            {
                let version = &waiting.version;
                tracing::warn!("{version} does not start without a reboot any more: {why}");
                machine.upgrades.forget_prepared(&machine.init).await;
            }
        }
        Err(reason) => withdraw(machine, &waiting.version, &reason).await,
    }
}

async fn withdraw(machine: &Machine, version: &str, reason: &str) {
    let reason = format!("{version} waited for its start and is taken back: {reason}");
    if let Err(error) = trial_record::unstage(machine).await {
        tracing::error!("the next boot may try it: {error:#}: {reason}");
        return;
    }
    tracing::error!("{reason}");
    emit_failure(&machine.events, &ActorId::new(), "stageUpgrade", reason);
    machine.pins.forget_preparation().await;
}

#[cfg(test)]
mod tests;
