//! The upgrade by a stick: decided when its bundle is good, begun when its images are here. It is the upgrade of the API, with its checks.

use std::sync::Arc;

use super::judge::{self, Allowed};
use super::{Report, rules};
use crate::base::error_chain::chain;
use crate::bundles::upgrade::{self, Installer, Standing};
use crate::bundles::{Taken, Upgrade};
use crate::machine::Machine;
use crate::sequences::hang_up::Caller;
use crate::sequences::upgrade::{WhyFailed, begin as begin_upgrade};
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
        begun_before: before.as_ref().map_or(0, Taken::upgrades),
    };
    let failed = machine.upgrades.failed_images().clone();
    let failure = |digest: Digest| failed.reason(&digest.to_string()).map(str::to_owned);
    let (decided, chosen) = upgrade::plan(&installers, standing, failure);
    if matches!(decided, Upgrade::NotNewer { .. }) && standing.begun_before > 0 {
        remember(machine, bundle, Taken::upgrade_done);
    }
    report.upgrade(decided);
    chosen.cloned()
}

/// Changes what is remembered of a bundle's upgrades.
fn remember(machine: &Machine, bundle: Digest, change: fn(&mut Taken)) {
    if let Err(error) = machine.bundles.kept.change(bundle, change) {
        tracing::warn!("that a bundle has begun an upgrade is not remembered: {error:#}");
    }
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

/// Begins the upgrade by a bundle that was taken, and remembers that this bundle has begun one. Returns if it fails; otherwise the upgrade ends this
/// generation meanwhile.
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
        Ok(begun) => {
            // Before the services stop: the upgrade leaves half a second for that.
            remember(machine, bundle, Taken::upgrade_begins);
            let failure = begun.failure;
            tell(version, failure, report).await;
        }
        Err(error) => {
            let reason = chain(&error);
            report.upgrade(Upgrade::Refused { version, reason });
        }
    }
}

/// Reports that an upgrade has begun, and if it fails, why: nobody has to wait any more then before the machine is switched off. A sequence has
/// limits of its own.
async fn tell(version: String, failure: WhyFailed, report: &Report) {
    report.upgrade(Upgrade::Begun {
        version: version.clone(),
    });
    if let Ok(reason) = failure.await {
        report.upgrade(Upgrade::Refused { version, reason });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::sync::oneshot;

    use super::*;
    use crate::bundles::{BundleFact, Event, Place};
    use crate::sequences::image_pins::machine_for_tests::unbooted;

    const VERSION: &str = "v0.2.0";

    fn begun() -> Upgrade {
        let version = VERSION.to_owned();
        Upgrade::Begun { version }
    }

    fn upgrade_of(machine: &Machine) -> Option<Upgrade> {
        machine.store.get::<BundleFact>("sda1")?.upgrade
    }

    async fn stick(directory: &std::path::Path) -> (Arc<Machine>, Report) {
        let machine = unbooted(directory).await;
        let label = "INSTAR-BUNDLE".to_owned();
        let report = Report::begin(&machine, "sda1", Place::Stick { label });
        (machine, report)
    }

    #[tokio::test]
    async fn an_upgrade_that_fails_does_not_go_on_for_the_person_who_waits() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, report) = stick(directory.path()).await;
        // It never ends, or ends with the generation.
        let (running, failure) = oneshot::channel();
        drop(running);
        tell(VERSION.to_owned(), failure, &report).await;
        assert_eq!(upgrade_of(&machine), Some(begun()));
        let (failed, failure) = oneshot::channel();
        let reason = "the ESP has no slot".to_owned();
        failed.send(reason.clone()).unwrap();
        tell(VERSION.to_owned(), failure, &report).await;
        let version = VERSION.to_owned();
        let refused = Upgrade::Refused { version, reason };
        assert_eq!(upgrade_of(&machine), Some(refused));
    }

    /// Its device's name may be another stick's by then.
    #[tokio::test]
    async fn a_stick_that_was_pulled_out_is_not_shown_again_when_its_upgrade_ends() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, report) = stick(directory.path()).await;
        report.tell(Event::PulledOut);
        report.upgrade(begun());
        assert!(machine.store.get::<BundleFact>("sda1").is_none());
    }
}
