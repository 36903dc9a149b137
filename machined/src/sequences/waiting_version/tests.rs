//! The judgement, by what a config demands, what is on record and what a registry answers.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;
use crate::oci::Unjudged;
use crate::sequences::image_pins::machine_for_tests::unbooted;
use crate::sequences::written_version::for_tests::{Case, Key, Record, Rule};
use crate::sequences::{ApplyMode, apply_config};
use crate::upgrade::{InstallerOutput, PendingUpgrade, Prepared};

/// The registry's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    HasIt,
    /// The image is gone.
    NotFound,
}

/// A machine with the version of this upgrade in memory.
async fn waits(directory: &Path, upgrade: PendingUpgrade) -> Arc<Machine> {
    let machine = unbooted(directory).await;
    let prepared = Prepared {
        delivery: InstallerOutput {
            memfd: rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
            blake3: blake3::hash(b"r"),
            boot_entry: None,
            takes_sockets: false,
            signature: None,
        },
        upgrade,
    };
    machine.upgrades.set_prepared(prepared, &machine.init).await;
    machine
}

#[tokio::test]
async fn the_table_says_which_version_stays() {
    use Answer::{HasIt, NotFound};
    use Record::{Full, Nothing, OtherUki, Unsigned};
    for (rule, key, record, answer, stays) in [
        (Rule::None, Key::None, Nothing, NotFound, true),
        (Rule::None, Key::None, Unsigned, NotFound, true),
        (Rule::Deny, Key::None, Full, HasIt, false),
        (Rule::Ours, Key::None, Full, HasIt, true),
        (Rule::Ours, Key::None, Full, NotFound, true),
        (Rule::Ours, Key::None, Unsigned, HasIt, true),
        (Rule::Ours, Key::None, Unsigned, NotFound, false),
        (Rule::Ours, Key::None, Nothing, NotFound, false),
        (Rule::Others, Key::None, Full, HasIt, false),
        (Rule::Others, Key::None, Full, NotFound, false),
        (Rule::None, Key::Owners, Full, NotFound, true),
        (Rule::None, Key::Owners, Unsigned, NotFound, false),
        (Rule::None, Key::Owners, OtherUki, NotFound, false),
        (Rule::None, Key::Owners, Nothing, NotFound, false),
        (Rule::None, Key::Strangers, Full, NotFound, false),
        (Rule::Ours, Key::Owners, Full, NotFound, true),
        (Rule::Ours, Key::Strangers, Full, HasIt, false),
        (Rule::Deny, Key::Owners, Full, HasIt, false),
    ] {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = waits(directory.path(), case.upgrade(record)).await;
        if answer == NotFound {
            case.registry.forget(&case.os, case.os.index);
            case.registry.forget(&case.os, case.os.manifest);
        }
        let waiting = find(&machine).await.unwrap();
        let judged = judgement(&machine, &waiting, Some(&case.config(rule, key))).await;
        let of = (rule, key, record, answer);
        assert_eq!(judged.is_ok(), stays, "{of:?}: {judged:?}");
    }
}

#[tokio::test]
async fn a_registry_that_says_nothing_allows_nothing() {
    let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
    let machine = waits(directory.path(), case.upgrade(Record::Unsigned)).await;
    let waiting = find(&machine).await.unwrap();
    case.registry.fall_silent();
    tokio::time::pause();
    let by = case.config(Rule::Ours, Key::None);
    let refused = judgement(&machine, &waiting, Some(&by)).await.unwrap_err();
    assert!(refused.contains("stage it again"), "{refused}");
}

/// The rules have wanted no signature when it was staged, or one by another key.
#[tokio::test]
async fn the_signatures_on_record_are_enough_without_a_registry() {
    let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
    let puller = case.registry.puller_without_rules();
    let resolved = puller.look_up(&case.os.name).await.unwrap();
    let kept = puller.signatures(&resolved).await;
    assert!(!kept.is_empty());
    for (signatures, rule, stays) in [
        (Some(kept.clone()), Rule::Ours, true),
        (Some(kept), Rule::Others, false),
        (Some(Unjudged::default()), Rule::Ours, false),
        // A version before has written the record.
        (None, Rule::Ours, false),
    ] {
        let mut upgrade = case.upgrade(Record::Unsigned);
        upgrade.evidence.signatures = signatures;
        // As the record on STATE has it.
        let record = serde_json::to_vec(&upgrade).unwrap();
        let upgrade: PendingUpgrade = serde_json::from_slice(&record).unwrap();
        let machine = waits(directory.path(), upgrade).await;
        case.registry.forget(&case.os, case.os.index);
        case.registry.forget(&case.os, case.os.manifest);
        let waiting = find(&machine).await.unwrap();
        let judged = judgement(&machine, &waiting, Some(&case.config(rule, Key::None))).await;
        assert_eq!(judged.is_ok(), stays, "{rule:?}: {judged:?}");
    }
}

#[tokio::test]
async fn a_record_that_names_no_image_is_allowed_by_no_rule() {
    let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
    let machine = unbooted(directory.path()).await;
    let waiting = WrittenVersion {
        version: "v0.2.0".to_owned(),
        upgrade: Some(PendingUpgrade::default()),
        image: None,
    };
    for (rule, stays) in [(Rule::None, true), (Rule::Ours, false)] {
        let by = case.config(rule, Key::None);
        let judged = judgement(&machine, &waiting, Some(&by)).await;
        assert_eq!(judged.is_ok(), stays, "{judged:?}");
    }
}

/// The config in force allows it, and is not the one of the next boot.
#[tokio::test]
async fn the_next_boots_config_judges_before_the_machine_leaves() {
    for (rule, stays) in [(Rule::Ours, true), (Rule::Deny, false)] {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = waits(directory.path(), case.upgrade(Record::Full)).await;
        machine.set_config(case.config(Rule::Ours, Key::None));
        let lock = machine.lock_operation(Operation::Reboot).unwrap();
        let next = case.config(rule, Key::None);
        still_allowed(&machine, &lock, Some(&next)).await;
        let waits = machine.upgrades.prepared_version().is_some();
        assert_eq!(waits, stays, "{rule:?}");
    }
}

#[tokio::test]
async fn a_config_that_is_applied_takes_back_what_it_refuses_before_it_answers() {
    let hour = Duration::from_secs(3600);
    for (rule, key, mode, stays) in [
        (Rule::Deny, Key::None, ApplyMode::NoReboot, false),
        (Rule::Ours, Key::Strangers, ApplyMode::Auto, false),
        (Rule::Ours, Key::Owners, ApplyMode::Auto, true),
        (Rule::Deny, Key::None, ApplyMode::Try(hour), true),
    ] {
        let (case, directory) = (Case::new(), tempfile::tempdir().unwrap());
        let machine = waits(directory.path(), case.upgrade(Record::Full)).await;
        machine.set_config(case.config(Rule::Ours, Key::None));
        let text = case.config(rule, key).text.clone();
        let applied = apply_config(&machine, text.as_bytes(), mode, false).await;
        applied.unwrap();
        let waits = machine.upgrades.prepared_version().is_some();
        assert_eq!(waits, stays, "{rule:?}, {key:?}");
    }
}
