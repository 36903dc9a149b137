//! The whole machine as tables: every cell once, in order.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::values::Digest;
use Counter::{Counted, NotCounted, Unknown};
use HandedOver::{NoUpgrade, Nothing, OtherVersion, RolledBack, ThisVersion};
use StartReason::{Boot, Fresh, Next as ByNext, Restart, Rollback};

const STARTS: [StartReason; 5] = [Boot, ByNext, Rollback, Restart, Fresh];
const HANDED_OVER: [HandedOver; 5] = [Nothing, NoUpgrade, ThisVersion, OtherVersion, RolledBack];
const COUNTERS: [Counter; 3] = [NotCounted, Counted, Unknown];

const RUNNING: &str = "v0.2.0";

/// Returns every pair of the two, the second one changing faster.
fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    let with = |a: A| second.iter().map(move |b| (a, *b));
    first.iter().flat_map(|a| with(*a)).collect()
}

fn upgrade(to: &str, boot_entry: Option<u32>) -> PendingUpgrade {
    PendingUpgrade {
        to: to.to_owned(),
        boot_entry,
        ..PendingUpgrade::default()
    }
}

fn handover(upgrade: Option<PendingUpgrade>) -> Handover {
    Handover {
        upgrade,
        services_up: vec!["soft".to_owned()],
        ..Handover::default()
    }
}

fn record() -> UpgradeRecord {
    UpgradeRecord {
        upgrade: upgrade(RUNNING, Some(7)),
        services_up: vec!["booted".to_owned()],
        failures: Vec::new(),
    }
}

#[test]
fn the_hand_over_is_read() {
    let of = |handover: Option<&Handover>| HandedOver::of(handover, RUNNING);
    assert_eq!(of(None), Nothing);
    assert_eq!(of(Some(&Handover::default())), NoUpgrade);
    let to = |version: &str| of(Some(&handover(Some(upgrade(version, None)))));
    assert_eq!(to(RUNNING), ThisVersion);
    assert_eq!(to("v0.3.0"), OtherVersion);
    let rolled_back = Handover {
        rolled_back: true,
        ..handover(Some(upgrade(RUNNING, None)))
    };
    assert_eq!(of(Some(&rolled_back)), RolledBack);
}

/// (start, hand-over) → the standing by the loader's report (not counted, counted, unknown), and the action on the record.
#[test]
fn every_start_before_there_is_a_disk() {
    use EarlyStanding::{CountedTrial, Interrupted, NotOnTrial, RolledBack as IsBack, SoftTrial};
    use RecordStep::{GiveUp, Leave, Load};
    #[rustfmt::skip]
    let table = [
        // Started by the loader. There is never a hand-over: it ends with the kernel.
        (Boot,     Nothing,      [NotOnTrial, CountedTrial, CountedTrial], Load),
        (Boot,     NoUpgrade,    [NotOnTrial; 3],                          Load),
        (Boot,     ThisVersion,  [NotOnTrial; 3],                          Load),
        (Boot,     OtherVersion, [NotOnTrial; 3],                          Load),
        (Boot,     RolledBack,   [NotOnTrial; 3],                          Load),
        // An upgrade without a reboot, whatever the hand-over says.
        (ByNext,   Nothing,      [SoftTrial; 3],                           Leave),
        (ByNext,   NoUpgrade,    [SoftTrial; 3],                           Leave),
        (ByNext,   ThisVersion,  [SoftTrial; 3],                           Leave),
        (ByNext,   OtherVersion, [SoftTrial; 3],                           Leave),
        (ByNext,   RolledBack,   [SoftTrial; 3],                           Leave),
        // The version before is back; the generation behind it is gone.
        (Rollback, Nothing,      [IsBack; 3],                              GiveUp),
        (Rollback, NoUpgrade,    [IsBack; 3],                              GiveUp),
        (Rollback, ThisVersion,  [IsBack; 3],                              GiveUp),
        (Rollback, OtherVersion, [IsBack; 3],                              GiveUp),
        (Rollback, RolledBack,   [IsBack; 3],                              GiveUp),
        // machined died before its generation was healthy, after it was, during a trial, over an upgrade, and after a rollback.
        (Restart,  Nothing,      [NotOnTrial, CountedTrial, CountedTrial], Leave),
        (Restart,  NoUpgrade,    [NotOnTrial; 3],                          Leave),
        (Restart,  ThisVersion,  [SoftTrial; 3],                           Leave),
        (Restart,  OtherVersion, [Interrupted; 3],                         GiveUp),
        (Restart,  RolledBack,   [IsBack; 3],                              GiveUp),
        // The same image in a generation of its own changes nothing about that.
        (Fresh,    Nothing,      [NotOnTrial, CountedTrial, CountedTrial], Leave),
        (Fresh,    NoUpgrade,    [NotOnTrial; 3],                          Leave),
        (Fresh,    ThisVersion,  [SoftTrial; 3],                           Leave),
        (Fresh,    OtherVersion, [Interrupted; 3],                         GiveUp),
        (Fresh,    RolledBack,   [IsBack; 3],                              GiveUp),
    ];

    let mut seen = Vec::new();
    for (start, handed_over, standings, step) in table {
        for (counter, expected) in COUNTERS.into_iter().zip(standings) {
            let standing = EarlyStanding::of(start, handed_over, counter);
            let cell = format!("{start:?}, {handed_over:?}, {counter:?}");
            assert_eq!(standing, expected, "{cell}");
            assert_eq!(standing.record_step(start), step, "{cell}");
        }
        // The loader is asked exactly if its report makes a difference.
        let differs = standings.iter().any(|standing| *standing != standings[0]);
        assert_eq!(depends_on_loader(start, handed_over), differs);
        seen.push((start, handed_over));
    }
    assert_eq!(seen, pairs(&STARTS, &HANDED_OVER));
}

#[test]
fn only_a_version_on_trial_has_a_deadline() {
    use EarlyStanding::{CountedTrial, Interrupted, NotOnTrial, RolledBack, SoftTrial};
    for (standing, has_deadline) in [
        (NotOnTrial, false),
        (SoftTrial, true),
        (CountedTrial, true),
        (RolledBack, false),
        (Interrupted, false),
    ] {
        assert_eq!(standing.has_deadline(), has_deadline, "{standing:?}");
    }
}

/// (the recorded entry, the booted one) → the outcome if the record names the running version, and if it names another one.
#[test]
fn every_record_that_a_boot_finds() {
    use BootedEntry::{Other, Recorded, Unknown};
    use RecordedEntry::{Blessed, Counting, Gone, NotNamed};
    use RecordedUpgrade::{Failed, Kept, OnTrial, TakenBack};
    #[rustfmt::skip]
    let table = [
        // Firmware without a loader's variables, or a machine that does not boot from its disk: the version alone decides.
        (NotNamed, Unknown,  [OnTrial,   Failed]),
        (NotNamed, Recorded, [OnTrial,   Failed]),
        (NotNamed, Other,    [Failed,    Failed]),
        (Gone,     Unknown,  [TakenBack, TakenBack]),
        (Gone,     Recorded, [TakenBack, TakenBack]),
        (Gone,     Other,    [TakenBack, TakenBack]),
        (Counting, Unknown,  [OnTrial,   Failed]),
        (Counting, Recorded, [OnTrial,   Failed]),
        // The same version from another entry: not the one that the upgrade wrote.
        (Counting, Other,    [Failed,    Failed]),
        (Blessed,  Unknown,  [OnTrial,   Failed]),
        (Blessed,  Recorded, [Kept,      Kept]),
        (Blessed,  Other,    [Failed,    Failed]),
    ];
    let mut seen = Vec::new();
    for (entry, booted, expected) in table {
        let found = [true, false].map(|runs| RecordedUpgrade::of(entry, booted, runs));
        assert_eq!(found, expected, "{entry:?}, {booted:?}");
        seen.push((entry, booted));
    }
    let entries = [NotNamed, Gone, Counting, Blessed];
    assert_eq!(seen, pairs(&entries, &[Unknown, Recorded, Other]));

    assert_eq!(BootedEntry::of(None, Some(7)), Unknown);
    assert_eq!(BootedEntry::of(None, None), Unknown);
    assert_eq!(BootedEntry::of(Some(7), Some(7)), Recorded);
    assert_eq!(BootedEntry::of(Some(7), Some(6)), Other);
    assert_eq!(BootedEntry::of(Some(7), None), Other);
}

#[test]
fn a_recorded_version_that_runs_does_not_wait_for_its_start() {
    use RecordedVersion::{Booted, Running, Waiting};
    let digest = |name: &str| Digest::of(name.as_bytes());
    let recorded = PendingUpgrade {
        digest: digest("image").to_string(),
        ..upgrade(RUNNING, Some(8))
    };
    let of_image = |version: &str, image: &str| {
        Some(ReleaseOrigin {
            version: version.to_owned(),
            image: String::new(),
            digest: digest(image),
            created: None,
        })
    };
    // (the booted entry, the image that the running version came from) → the recorded version
    let table = [
        // Booted from the entry of v0.1.0, running v0.2.0: only memory holds it should its entry go.
        (Some(7), of_image(RUNNING, "image"), Running),
        (None, of_image(RUNNING, "image"), Running),
        (Some(7), of_image("v0.1.0", "old"), Waiting),
        // The same version built anew waits; it is not the one that runs.
        (Some(7), of_image(RUNNING, "old"), Waiting),
        (Some(7), None, Waiting),
        (None, None, Waiting),
        (Some(8), of_image(RUNNING, "image"), Booted),
        (Some(8), None, Booted),
    ];
    for (booted, running, expected) in table {
        let found = RecordedVersion::of(&recorded, booted, running.as_ref());
        assert_eq!(found, expected, "{booted:?} {running:?}");
    }
    // A record that names no image.
    let unnamed = upgrade(RUNNING, Some(8));
    let running = of_image(RUNNING, "image");
    assert_eq!(
        RecordedVersion::of(&unnamed, Some(7), running.as_ref()),
        Waiting
    );
}

/// The loader's report → by the entry on the disk: as booted, counting, blessed, gone, of another version, unknown.
#[test]
fn every_word_of_the_loader() {
    use EntryNow::{AsBooted, Blessed, Counting, Gone, OfAnotherVersion};
    let entries = [
        AsBooted,
        Counting,
        Blessed,
        Gone,
        OfAnotherVersion,
        EntryNow::Unknown,
    ];
    let table = [
        (NotCounted, [false; 6]),
        // An entry that is gone is not one that was kept.
        (Counted, [true, true, false, true, false, false]),
        (Unknown, [false; 6]),
    ];
    for (counter, expected) in table {
        let counted = entries.map(|now| is_counted(counter, now));
        assert_eq!(counted, expected, "{counter:?}");
    }
    assert_eq!(table.map(|(counter, _)| counter), COUNTERS);
}

/// (early standing, whether a boot has the version on trial) → the gate's services, and the next step after success and after failure.
#[test]
fn every_end_of_a_boot() {
    use EarlyStanding::{CountedTrial, Interrupted, NotOnTrial, RolledBack, SoftTrial};
    let soft = upgrade(RUNNING, Some(8));
    let handover = handover(Some(soft.clone()));
    let failed = || "the gate".to_owned();

    let stay = (
        None,
        Next::Commit(Commit::NOT_ON_TRIAL),
        Next::StayUp { problem: failed() },
    );
    let go_back = (
        Some("soft"),
        Next::Commit(Commit {
            upgrade: Some(soft),
            bless: Bless::Order(8),
        }),
        Next::GiveUp { reason: failed() },
    );
    let reboot = |bless| {
        let commit = Commit {
            upgrade: Some(record().upgrade),
            bless,
        };
        let again = Next::TryAgain {
            record: record(),
            reason: failed(),
        };
        (Some("booted"), Next::Commit(commit), again)
    };
    #[rustfmt::skip]
    let table = [
        (NotOnTrial,   false, stay.clone()),
        // A record on firmware that does not count; machined restarted between its report of health and the blessing.
        (NotOnTrial,   true,  reboot(Bless::Booted)),
        (SoftTrial,    false, go_back),
        // Over a booted version that was not blessed, machined restarted during the trial.
        (SoftTrial,    true,  reboot(Bless::Order(7))),
        // The loader could not be asked, or the version was kept meanwhile.
        (CountedTrial, false, stay.clone()),
        (CountedTrial, true,  reboot(Bless::Booted)),
        (RolledBack,   false, stay.clone()),
        (RolledBack,   true,  reboot(Bless::Booted)),
        (Interrupted,  false, stay),
        (Interrupted,  true,  reboot(Bless::Booted)),
    ];

    let mut seen = Vec::new();
    for (early, on_trial, (services, kept, fails)) in table {
        let standing = Standing::of(early, &handover, on_trial.then(record));
        let at_gate = standing.services_at_gate().map(|up| up.join(" "));
        assert_eq!(at_gate.as_deref(), services, "{early:?}, {on_trial}");
        assert_eq!(standing.clone().next(Ok(())), kept, "{early:?}, {on_trial}");
        let next = standing.next(Err(failed()));
        assert_eq!(next, fails, "{early:?}, {on_trial}");
        seen.push((early, on_trial));
    }
    let all = [NotOnTrial, SoftTrial, CountedTrial, RolledBack, Interrupted];
    assert_eq!(seen, pairs(&all, &[false, true]));
}

/// The row "the hand-over cannot be read" of all starts.
#[test]
fn only_a_version_on_trial_gives_itself_up_over_a_hand_over_that_it_cannot_read() {
    for (start, gives_up) in [
        (Boot, false),
        (ByNext, true),
        (Rollback, false),
        (Restart, false),
        (Fresh, false),
    ] {
        match with_unreadable_handover(start, "parse the hand-over: no map") {
            Some(Next::GiveUp { reason }) => {
                assert!(gives_up, "{start:?}");
                assert!(reason.contains("parse the hand-over: no map"), "{reason}");
            }
            None => assert!(!gives_up, "{start:?}"),
            other => panic!("{start:?}: {other:?}"),
        }
    }
}

/// Without a hand-over, and on a machine that does not boot from its disk, there is no entry of the upgrade's own.
#[test]
fn a_soft_upgrade_without_an_entry_blesses_the_booted_one() {
    for upgrade in [None, Some(upgrade(RUNNING, None))] {
        let handover = handover(upgrade.clone());
        let standing = Standing::of(EarlyStanding::SoftTrial, &handover, None);
        let bless = Bless::Booted;
        assert_eq!(
            standing.next(Ok(())),
            Next::Commit(Commit { upgrade, bless })
        );
    }
}

#[test]
fn a_machine_without_a_config_is_kept_unless_a_boot_has_it_on_trial() {
    let reason = || "it finds no machine config".to_owned();
    let (upgrade, services_up) = (Some(upgrade(RUNNING, Some(8))), Vec::new());
    let soft = Standing::Soft {
        upgrade: upgrade.clone(),
        services_up,
    };
    let counted = |is_soft| Standing::Counted {
        record: record(),
        is_soft,
    };
    let again = Next::TryAgain {
        record: record(),
        reason: reason(),
    };
    let bless = Bless::Order(8);
    let table = [
        (Standing::NotOnTrial, Next::Commit(Commit::NOT_ON_TRIAL)),
        (soft, Next::Commit(Commit { upgrade, bless })),
        (counted(false), again.clone()),
        (counted(true), again),
    ];
    for (standing, next) in table {
        assert_eq!(
            without_config(standing.clone(), reason()),
            next,
            "{standing:?}"
        );
    }
}

/// The config may come after init's deadline: a generation that was kept is not given up by then.
#[test]
fn what_was_kept_without_a_config_is_not_on_trial_when_the_config_comes() {
    use EarlyStanding::{CountedTrial, Interrupted, NotOnTrial, RolledBack, SoftTrial};
    let table = [
        (NotOnTrial, NotOnTrial),
        (SoftTrial, NotOnTrial),
        (CountedTrial, NotOnTrial),
        (RolledBack, RolledBack),
        (Interrupted, Interrupted),
    ];
    for (early, later) in table {
        assert_eq!(early.once_kept(), later);
        assert!(!later.has_deadline());
    }
}

#[test]
fn every_entry_that_is_blessed() {
    #[rustfmt::skip]
    let table = [
        (Bless::BootedUnlessUnderWay, true,  None,    Some(3)),
        (Bless::Booted,               false, None,    Some(3)),
        (Bless::Order(8),             false, Some(8), Some(8)),
    ];
    for (bless, gives_way, elsewhere, booted) in table {
        assert_eq!(bless.gives_way_to_a_record(), gives_way, "{bless:?}");
        assert_eq!(bless.order(None), elsewhere, "{bless:?}");
        assert_eq!(bless.order(Some(3)), booted, "{bless:?}");
    }
}
