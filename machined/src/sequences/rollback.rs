//! The rollback: a reboot into the other version that was healthy once.
//!
//! ```text
//! who asks                               │ the floor         │ rules for images, keys for upgrades │ damaged │ revoked by the firmware
//! ───────────────────────────────────────┼───────────────────┼─────────────────────────────────────┼─────────┼────────────────────────
//! a person                               │ refuses           │ refuse                              │ refused │ refused
//! a person, by force                     │ a line in the log │ not asked, a line in the log        │ refused │ a line in the log
//! a channel whose release does not work  │ refuses           │ not asked                           │ refused │ refused
//! ```
//!
//! A version that fails its trial is left in any case: the boot loader and init go back by themselves, and ask nothing here.

use std::sync::Arc;

use instar_esp::Entry;

use super::shutdown;
use super::steps::boot_assets::{self, Installed};
use super::upgrade::{committed, trial_record};
use super::written_version::{Refused, WrittenVersion, ask_keys};
use crate::boot_loader::Unbootable;
use crate::intent::next_config;
use crate::machine::{Configured, Machine};
use crate::operation_lock::{Busy, Operation};
use crate::store::event_log::ActorId;
use crate::upgrade::{
    PendingUpgrade, Refusal, ReleaseOrigin, RootfsTrust, WrittenImage, below_floor,
};

/// Who asks for a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RollbackBy {
    /// A person, by the API.
    Person {
        /// Even to a version that the floor, a rule or a key refuses.
        force: bool,
    },
    /// The machine itself: the release of its channel that runs does not work. A version that works is better than none, whatever the rules say
    /// by now.
    Channel,
}

/// Why a rollback was refused.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// Another operation is running.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// There is no other version.
    #[error(
        "this machine does not boot from its disk, so there is no other version to go back to; upgrade to it instead"
    )]
    NotInstalled,
    /// The other version is below the machine's floor.
    #[error(transparent)]
    BelowFloor(Refusal),
    /// The rules for images or the keys for upgrades refuse the other version.
    #[error(
        "{version}, which was healthy here once, is not started: {why}; change the rule or the keys in the machine config, or go back all the \
         same by force (instarctl rollback --force)"
    )]
    NotAllowed {
        /// The version.
        version: String,
        /// What refuses it, and what was found.
        why: String,
    },
    /// The other version would not start.
    #[error(
        "{version}, which was healthy here once, would not start any more: {why}; the running version stays, and an upgrade to {version} writes \
         it anew"
    )]
    Damaged {
        /// The version.
        version: String,
        /// What was found.
        why: String,
    },
    /// No other version could be booted.
    #[error(transparent)]
    Failed(anyhow::Error),
}

/// Makes the other version the next to boot, and reboots. By force even to a version that the floor, a rule or a key refuses.
///
/// The decision: they are in force here too. A rollback would otherwise be the way around them for whoever may call this method, and
/// force still spares everybody a visit to the machine.
pub async fn rollback(machine: &Arc<Machine>, by: RollbackBy) -> Result<ActorId, RollbackError> {
    let lock = machine.lock_operation(Operation::Rollback)?;
    let installed = boot_assets::installed(machine)
        .await
        .map_err(RollbackError::Failed)?
        .ok_or(RollbackError::NotInstalled)?;
    let other = boot_assets::other(&machine.running, &installed)
        .await
        .map_err(RollbackError::Failed)?;
    let of_medium = of_medium(&installed, &other).await;
    may_go_back(machine, (&other, of_medium.as_ref()), by).await?;
    let order = other.name.order;
    let found = boot_assets::check_version(machine, &installed, order)
        .await
        .map_err(RollbackError::Failed)?;
    would_start(&other.name.version.to_string(), found, by)?;
    // Also the running version, if its entry is not blessed: the caller wants to leave it.
    let staged = trial_record::tried_next(machine)
        .await
        .map_err(RollbackError::Failed)?;
    let staged = staged.and_then(|record| record.upgrade.boot_entry);
    // First: if a later step fails, a reboot must not start a version from memory that has been removed from the disk.
    machine.upgrades.forget_prepared(&machine.init).await;
    machine.pins.forget_preparation().await;
    let version = boot_assets::prefer_other(&machine.running, &installed, staged)
        .await
        .map_err(RollbackError::Failed)?;
    // The upgrade under way is over: the next boot is the requested one, and no failure.
    let removed = trial_record::remove_record(machine).await;
    removed.map_err(RollbackError::Failed)?;
    hold_running(machine, &version).await;
    tracing::warn!("rollback: {version} is booted next");
    Ok(shutdown::reboot_next(machine, lock))
}

/// Returns what the medium that the machine was installed from has said of the image of this entry's version.
async fn of_medium(installed: &Installed, to: &Entry) -> Option<WrittenImage> {
    let description = boot_assets::description(installed).await;
    let description = description.unwrap_or_else(|error| {
        tracing::warn!("nobody knows what the medium has said of its version: {error:#}");
        None
    });
    WrittenImage::of_medium(&description?, &to.uki.blake3.to_string())
}

/// Asks the floor, the rules for images and the keys for upgrades whether the version of this entry may be started. `of_medium`: what its medium
/// has said of its image.
async fn may_go_back(
    machine: &Machine,
    (to, of_medium): (&Entry, Option<&WrittenImage>),
    by: RollbackBy,
) -> Result<(), RollbackError> {
    let is_forced = by == RollbackBy::Person { force: true };
    let version = &to.name.version;
    match below_floor(version, &machine.upgrades.floor_in_force()) {
        Some(objection) if is_forced => tracing::warn!("forced, although {objection}"),
        Some(objection) => return Err(RollbackError::BelowFloor(objection)),
        None => {}
    }
    let version = version.to_string();
    match by {
        RollbackBy::Person { force: false } => {}
        RollbackBy::Person { force: true } => {
            tracing::warn!(
                "forced: neither rules for images nor keys for upgrades are asked about {version}"
            );
            return Ok(());
        }
        RollbackBy::Channel => return Ok(()),
    }
    let uki = to.uki.blake3.to_string();
    let installed = committed::installed_by(machine, uki).await;
    let installed = installed.unwrap_or_else(|error| {
        tracing::warn!("nobody knows which image {version} came from: {error:#}");
        None
    });
    let written = known(version, installed);
    // Either may be the one that the next boot finds.
    for config in [machine.config(), next_config::planned(machine).await] {
        judge(machine, (&written, of_medium), config.as_deref()).await?;
    }
    Ok(())
}

/// Refuses a version that would not start, before the loader is told to take it first. Force and a channel ask no rule, but no word of theirs
/// mends a UKI. Which programs the firmware starts may change until the reboot, so force goes to a revoked one.
fn would_start(
    version: &str,
    found: Option<Unbootable>,
    by: RollbackBy,
) -> Result<(), RollbackError> {
    let version = version.to_owned();
    match found {
        None => Ok(()),
        Some(Unbootable::Damaged(why)) => Err(RollbackError::Damaged { version, why }),
        Some(Unbootable::Revoked(why)) if by == RollbackBy::Person { force: true } => {
            tracing::warn!("forced, although {version} would not start: {why}");
            Ok(())
        }
        Some(Unbootable::Revoked(why)) => Err(RollbackError::NotAllowed { version, why }),
    }
}

/// Returns what is known of a version on the disk; `installed` is the upgrade that brought its UKI.
fn known(version: String, installed: Option<PendingUpgrade>) -> WrittenVersion {
    match installed {
        Some(upgrade) => WrittenVersion::of_upgrade(upgrade),
        // It came from a medium, or the record is lost.
        None => WrittenVersion {
            version,
            upgrade: None,
            image: None,
        },
    }
}

/// Judges a version that a reboot through the firmware is to start, by a config.
async fn judge(
    machine: &Machine,
    (written, of_medium): (&WrittenVersion, Option<&WrittenImage>),
    by: Option<&Configured>,
) -> Result<(), RollbackError> {
    let refused = |why: Refused| RollbackError::NotAllowed {
        version: written.version.clone(),
        why: why.to_string(),
    };
    written.ask_rules(machine, by).await.map_err(refused)?;
    let image = written.upgrade.as_ref();
    let image = image.and_then(|upgrade| upgrade.evidence.written.as_ref());
    let image = image.or(of_medium);
    let check = |trust: &RootfsTrust| trust.check_boot(&written.version, image);
    ask_keys(by, check).await.map(drop).map_err(refused)
}

/// Has a machine that follows a channel not go to the running release again by itself, once the other version runs.
async fn hold_running(machine: &Machine, to: &str) {
    let origin = machine.store.get::<ReleaseOrigin>(ReleaseOrigin::RUNNING);
    let version = machine.running.version.parse();
    // A version that came from a medium, or has no place in the order of versions, is no release that a channel could name here.
    if let (Some(origin), Ok(version)) = (origin, version) {
        let (follow, init) = (&machine.follow, &machine.init);
        follow.leave(origin.digest, version, to, init).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sequences::image_pins::machine_for_tests::unbooted;
    use crate::sequences::written_version::for_tests::{Case, Key, Record, Rule};

    async fn judged(case: &Case, record: Option<Record>, law: (Rule, Key)) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let upgrade = record.map(|record| case.upgrade(record));
        let written = known("v0.2.0".to_owned(), upgrade);
        let config = case.config(law.0, law.1);
        let judged = judge(&machine, (&written, None), Some(&config)).await;
        judged.map_err(|refused| refused.to_string())
    }

    #[tokio::test]
    async fn a_person_goes_back_to_what_rules_and_keys_allow_now() {
        use Record::{Full, OtherUki, Unsigned};
        let case = Case::new();
        for (rule, key, record, is_allowed) in [
            (Rule::None, Key::None, None, true),
            (Rule::None, Key::None, Some(Unsigned), true),
            (Rule::Ours, Key::None, Some(Full), true),
            (Rule::Ours, Key::Owners, Some(Full), true),
            (Rule::Deny, Key::None, Some(Full), false),
            (Rule::Others, Key::None, Some(Full), false),
            (Rule::None, Key::Owners, Some(OtherUki), false),
            (Rule::None, Key::Strangers, Some(Full), false),
            // It came from a medium: nothing shows that anybody has signed it.
            (Rule::Ours, Key::None, None, false),
            (Rule::None, Key::Owners, None, false),
        ] {
            let judged = judged(&case, record, (rule, key)).await;
            let of = (rule, key, record);
            assert_eq!(judged.is_ok(), is_allowed, "{of:?}: {judged:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_names_image_rule_key_and_what_was_found_and_the_way_out() {
        let case = Case::new();
        let law = (Rule::Others, Key::None);
        let told = judged(&case, Some(Record::Full), law).await.unwrap_err();
        let (image, digest) = (case.os.name.to_string(), case.os.manifest.to_string());
        for part in [
            "v0.2.0",
            image.as_str(),
            digest.as_str(),
            "rule 0000 (*)",
            "signature by the key sha256:",
            "1 signature, not by this key",
            "instarctl rollback --force",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let law = (Rule::Deny, Key::None);
        let told = judged(&case, Some(Record::Full), law).await.unwrap_err();
        assert!(
            told.contains("rule 0000 (*)") && told.contains("denies it"),
            "{told}"
        );
    }

    #[tokio::test]
    async fn a_version_from_a_medium_is_judged_by_what_that_has_said() {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = unbooted(directory.path()).await;
        let written = known("v0.2.0".to_owned(), None);
        for (record, key, is_allowed) in [
            (Record::Full, Key::Owners, true),
            (Record::Full, Key::Strangers, false),
            (Record::OtherUki, Key::Owners, false),
            (Record::Nothing, Key::Owners, false),
        ] {
            let of_medium = case.upgrade(record).evidence.written;
            let config = case.config(Rule::None, key);
            let judged = judge(&machine, (&written, of_medium.as_ref()), Some(&config)).await;
            assert_eq!(
                judged.is_ok(),
                is_allowed,
                "{record:?}, {key:?}: {judged:?}"
            );
        }
    }

    #[test]
    fn nothing_leads_to_a_version_that_would_not_start() {
        let person = |force| RollbackBy::Person { force };
        let damaged = || Some(Unbootable::Damaged("it rots".to_owned()));
        let revoked = || Some(Unbootable::Revoked("dbx".to_owned()));
        for (found, by, is_taken) in [
            (None, person(false), true),
            (damaged(), person(false), false),
            (damaged(), person(true), false),
            (damaged(), RollbackBy::Channel, false),
            (revoked(), person(false), false),
            (revoked(), person(true), true),
            (revoked(), RollbackBy::Channel, false),
        ] {
            let judged = would_start("v0.1.0", found.clone(), by);
            assert_eq!(judged.is_ok(), is_taken, "{found:?}, {by:?}: {judged:?}");
        }
        let told = would_start("v0.1.0", damaged(), person(true)).unwrap_err();
        let told = told.to_string();
        assert!(
            told.contains("v0.1.0") && told.contains("it rots"),
            "{told}"
        );
    }

    /// An entry of this version, whose UKI is on no record.
    fn entry(version: &str) -> Entry {
        Entry {
            name: format!("instar-1-{version}.conf").parse().unwrap(),
            slot: instar_esp::Slot::from_letter('a').unwrap(),
            uki: instar_esp::FileDigest::of(version.as_bytes()),
        }
    }

    #[tokio::test]
    async fn force_and_a_channel_ask_no_rule_and_the_floor_gives_way_to_force_alone() {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = unbooted(directory.path()).await;
        machine.set_config(case.config(Rule::Deny, Key::Strangers));
        let person = |force| RollbackBy::Person { force };
        let floor = "v0.2.0".parse().unwrap();
        let floor = crate::upgrade::Floor::of_release(Some(&floor), "v0.3.0");
        machine.upgrades.raise_floor(floor);
        for (version, by, is_allowed) in [
            ("v0.2.0", person(false), false),
            ("v0.2.0", person(true), true),
            ("v0.2.0", RollbackBy::Channel, true),
            ("v0.1.0", person(true), true),
            ("v0.1.0", RollbackBy::Channel, false),
        ] {
            let judged = may_go_back(&machine, (&entry(version), None), by).await;
            assert_eq!(judged.is_ok(), is_allowed, "{version}, {by:?}: {judged:?}");
        }
    }
}
