//! Applies the rules between releases to an image, and what this machine has seen of it before.

use crate::machine::Machine;
use crate::upgrade::{Candidate, Refusal, UpgradeRequest, objections};
use crate::values::ImageReference;

/// Returns the objections that force overrides; empty without force.
///
/// # Errors
/// Without force: the first objection.
pub(super) fn judge(
    machine: &Machine,
    request: &UpgradeRequest,
    reference: &ImageReference,
    candidate: &Candidate,
    digest: &str,
) -> Result<Vec<Refusal>, Refusal> {
    let failed = machine.upgrades.failed_images();
    let failed = failed.reason(digest).map(|reason| Refusal::FailedBefore {
        version: candidate.version.to_string(),
        reason: reason.to_owned(),
    });
    let floor = machine.upgrades.floor();
    let running = &machine.running.version;
    let rules = objections(candidate, reference.tag(), running, floor.as_ref());
    let mut all: Vec<Refusal> = failed.into_iter().chain(rules).collect();
    match request.force || all.is_empty() {
        true => Ok(all),
        false => Err(all.swap_remove(0)),
    }
}
