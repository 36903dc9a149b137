//! The upgrade by a stick: decided when its bundle is good, begun when its images are here. It is the upgrade of the API, with its checks.

use std::sync::Arc;

use super::judge::{self, Allowed};
use super::{Report, rules};
use crate::base::error_chain::chain;
use crate::bundles::Upgrade;
use crate::bundles::upgrade::{self, Installer, Standing};
use crate::machine::Machine;
use crate::sequences::hang_up::Caller;
use crate::sequences::upgrade::upgrade as begin_upgrade;
use crate::upgrade::{Candidate, UpgradeMode, UpgradeRequest};
use crate::values::Digest;

/// Decides whether a bundle upgrades the machine, and reports it. Returns the installer if so.
pub(super) fn plan(
    machine: &Machine,
    bundle: Digest,
    images: &[Allowed],
    report: &Report,
) -> Option<Installer> {
    let installers: Vec<Installer> = images.iter().filter_map(installer).collect();
    let before = judge::before(machine, bundle);
    let standing = Standing {
        allowed: rules(machine).upgrade,
        running: &machine.running.version,
        begun_before: before.is_some_and(|taken| taken.upgrade_begun),
    };
    let failed = machine.upgrades.failed_images().clone();
    let failure = |digest: Digest| failed.reason(&digest.to_string()).map(str::to_owned);
    let (decided, chosen) = upgrade::plan(&installers, standing, failure);
    report.upgrade(decided);
    chosen.cloned()
}

/// The image as an installer, if it is one.
fn installer(image: &Allowed) -> Option<Installer> {
    let candidate = Candidate::from_labels(&image.config.labels).ok()?;
    Some(Installer {
        reference: image.reference.clone(),
        digest: image.digest(),
        version: candidate.version,
    })
}

/// Begins the upgrade by a bundle that was taken, and remembers that this bundle has begun one.
pub(super) async fn begin(
    machine: &Arc<Machine>,
    bundle: Digest,
    installer: Installer,
    report: &Report,
) {
    let version = installer.version.to_string();
    let request = UpgradeRequest {
        // Exactly this image: a registry that can be reached may mean another one by its name.
        image: installer.pinned_name(),
        force: false,
        mode: UpgradeMode::Quickest,
    };
    match begin_upgrade(machine.clone(), request, Caller::machine()).await {
        Ok(_) => {
            // Before the services stop: the upgrade leaves half a second for that.
            let kept = &machine.bundles.kept;
            if let Err(error) = kept.change(bundle, |taken| taken.upgrade_begun = true) {
                tracing::warn!("that a bundle has begun an upgrade is not remembered: {error:#}");
            }
            report.upgrade(Upgrade::Begun { version });
        }
        Err(error) => {
            let reason = chain(&error);
            report.upgrade(Upgrade::Refused { version, reason });
        }
    }
}
