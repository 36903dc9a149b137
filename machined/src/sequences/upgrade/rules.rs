//! Applies the rules between releases to an image, and this machine's own experience with it.

use crate::config::Kubernetes;
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
    let floor = machine.upgrades.floor_in_force();
    let running = &machine.running.version;
    let rules = objections(candidate, reference.tag(), running, &floor);
    let mut all: Vec<Refusal> = failed.into_iter().chain(rules).collect();
    all.extend(no_node_modules(machine, candidate));
    match request.force || all.is_empty() {
        true => Ok(all),
        false => Err(all.swap_remove(0)),
    }
}

/// Returns the objection to a kernel that the node's base image has no modules for. A base that does not tell is not asked.
fn no_node_modules(machine: &Machine, candidate: &Candidate) -> Option<Refusal> {
    let configured = machine.config()?;
    let base = &configured.config.kubernetes.as_ref()?.image;
    let digest = machine.images_in_force.get(Kubernetes::CONTAINER, base)?;
    let image = machine.images.get(digest)?;
    let kernels = image.config().labels.get(KERNELS)?;
    let running = rustix::system::uname();
    let release = candidate.kernel_release.as_ref()?;
    if *release == running.release().to_string_lossy() || has_modules(kernels, release) {
        return None;
    }
    Some(Refusal::NoNodeModules {
        version: candidate.version.to_string(),
        release: release.clone(),
        base: base.to_string(),
        kernels: kernels.clone(),
    })
}

/// The label of a base image with the releases of the kernels that it has modules for (docs/contracts.md).
const KERNELS: &str = "dev.instar.kernels";

fn has_modules(kernels: &str, release: &str) -> bool {
    kernels.split_whitespace().any(|it| it == release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_has_modules_for_the_kernels_that_it_names() {
        let kernels = "6.12.90+deb13-cloud-amd64 6.12.90+deb13-amd64";
        assert!(has_modules(kernels, "6.12.90+deb13-amd64"));
        assert!(!has_modules(kernels, "6.12.9"));
        assert!(!has_modules("", "6.12.90+deb13-amd64"));
    }
}
