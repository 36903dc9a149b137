//! How the upgrade failed that the running version is left from: its caller is told, and the hand-over says so until the boot has ended.

use crate::machine::Machine;
use crate::sequences::emit_failure;
use crate::upgrade::trial::EarlyStanding;
use crate::upgrade::{Handover, PendingUpgrade};

use super::Rollback;

/// Tells the caller of the previous upgrade why it failed, if it did. Returns the hand-over for a machined that is started again before the boot's
/// end: it must neither take a rollback for an upgrade that is under way, nor forget which image has failed.
pub(super) fn tell(
    machine: &Machine,
    early: EarlyStanding,
    handover: Option<Handover>,
    rollback: Option<&Rollback>,
) -> Option<Handover> {
    let upgrade = handover.as_ref().and_then(|it| it.upgrade.as_ref());
    if let Some(rollback) = rollback {
        tell_rollback(machine, rollback, upgrade);
    }
    if let (EarlyStanding::Interrupted, Some(upgrade)) = (early, upgrade) {
        tell_interruption(machine, upgrade);
    }
    if early != EarlyStanding::RolledBack {
        return handover;
    }
    Some(Handover {
        upgrade: None,
        rolled_back: true,
        failed: machine.upgrades.failed_images().clone(),
        ..handover?
    })
}

/// Reports an upgrade that machined crashed in. The image may be sound, so it is not remembered.
fn tell_interruption(machine: &Machine, upgrade: &PendingUpgrade) {
    let reason = format!(
        "the upgrade to {} was given up: machined died, and {} runs",
        upgrade.to, machine.running.version
    );
    tracing::error!("{reason}");
    emit_failure(&machine.events, &upgrade.actor, "upgrade", reason);
}

/// Reports an upgrade that init rolled back, and remembers its image.
fn tell_rollback(machine: &Machine, rollback: &Rollback, upgrade: Option<&PendingUpgrade>) {
    let Rollback {
        cause,
        failed_version,
    } = rollback;
    tracing::error!(
        "version {failed_version} was given up, {} runs again: {cause}",
        machine.running.version
    );
    machine.upgrades.note_rollback();
    let Some(upgrade) = upgrade else {
        return;
    };
    machine
        .upgrades
        .failed_images()
        .remember(upgrade.digest.clone(), cause.clone());
    let reason = format!("version {failed_version} was rolled back: {cause}");
    emit_failure(&machine.events, &upgrade.actor, "upgrade", reason);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::init_link::StartReason;
    use crate::sequences::image_pins::machine_for_tests::unbooted;
    use crate::upgrade::trial::{Counter, HandedOver};

    #[tokio::test]
    async fn a_machined_that_dies_after_a_rollback_knows_of_it_and_of_the_failed_image() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        // The same version anew, from another image.
        let upgrade = PendingUpgrade {
            to: machine.running.version.clone(),
            digest: "sha256:bad".to_owned(),
            ..PendingUpgrade::default()
        };
        let left = Handover {
            upgrade: Some(upgrade),
            services_up: vec!["web".to_owned()],
            ..Handover::default()
        };
        let rollback = Rollback {
            cause: "the moon is full".to_owned(),
            failed_version: machine.running.version.clone(),
        };
        let early = EarlyStanding::RolledBack;
        let left = tell(&machine, early, Some(left), Some(&rollback)).unwrap();
        let handed_over = HandedOver::of(Some(&left), &machine.running.version);
        for start in [StartReason::Restart, StartReason::Fresh] {
            let again = EarlyStanding::of(start, handed_over, Counter::NotCounted);
            assert_eq!(again, EarlyStanding::RolledBack);
        }
        assert!(left.failed.reason("sha256:bad").is_some());
        assert_eq!(left.services_up, ["web"]);
        // Without a hand-over there is nothing to leave.
        assert!(tell(&machine, early, None, Some(&rollback)).is_none());
    }
}
