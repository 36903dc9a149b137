//! The table of steps, and properties over random histories.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use instar_channel::{Choice, Date, Position, Release, Why};

use super::*;
use crate::values::{Digest, Version, Window};

fn release(version: &str) -> Release {
    let list = format!(
        r#"{{"version": "{version}", "architecture": "amd64", "image": "r.io/os:{version}", "digest": "{}", "date": "{}"}}"#,
        Digest::of(version.as_bytes()),
        Date::from_seconds(1)
    );
    serde_json::from_str(&list).unwrap()
}

fn target(version: &str) -> Target {
    Target {
        release: release(version),
        seen: 1000,
        approved: false,
        tries: 0,
        not_before: None,
    }
}

fn attempt(version: &str, tries: u32) -> Attempt {
    Attempt {
        target: Target {
            tries,
            ..target(version)
        },
        from: "v0.1.0".into(),
        from_image: None,
        returns: 0,
        start: None,
        expects_start: false,
        restarts: 0,
        left_by_a_person: false,
    }
}

/// The lock of the config.
static HERE: LazyLock<LockPlace> = LazyLock::new(|| place("drawer"));

fn place(group: &str) -> LockPlace {
    LockPlace {
        url: "https://lock.example".into(),
        group: group.into(),
    }
}

fn record(stage: Stage) -> Record {
    Record {
        has_lock: false,
        stage,
        ..Record::begin("stable".into(), "me".into())
    }
}

/// 01:00 UTC of a day.
const NOW: u64 = 20_000 * 86_400 + 3600;

fn facts<'a>(running: &'a str, chosen: Chosen<'a>) -> Facts<'a> {
    Facts {
        now: NOW,
        knows_time: true,
        chosen,
        list_is_fresh: true,
        running,
        running_digest: None,
        failure: None,
        fetched: Fetched::Yes,
        is_signed: false,
        is_busy: false,
        lock: LockAnswer::Unasked,
        ready_for: Some(0),
        watched_for: 0,
        start: "first".into(),
    }
}

const POLICY: Policy<'_> = Policy {
    delay: 0,
    window: None,
    needs_approval: false,
    lock: None,
    healthy_for: 60,
    hold_for: None,
};

const NOTHING: Chosen<'_> = Chosen::None {
    offers_failed: false,
};

/// The channel has this release, and none that failed here.
fn offered(release: &Release) -> Chosen<'_> {
    Chosen::Release {
        release,
        offers_failed: false,
    }
}

fn waits(record: &Record, facts: &Facts<'_>, policy: &Policy<'_>) -> (&'static str, Act) {
    let step = step(record.clone(), facts, policy);
    (step.standing.word(), step.act)
}

/// A row of the table: its name, the record, a change of facts in which nothing is missing, the policy, and the state with what is to be done.
type Case<'a> = (
    &'static str,
    Record,
    fn(&mut Facts<'_>),
    Policy<'a>,
    (&'static str, Act),
);

fn check<const N: usize>(cases: [Case<'_>; N]) {
    let new = release("v0.2.0");
    for (named, record, change, policy, expected) in cases {
        let mut facts = facts("v0.1.0", offered(&new));
        change(&mut facts);
        assert_eq!(waits(&record, &facts, &policy), expected, "{named}");
    }
}

fn hold_of(version: &str, has_failed: bool) -> Hold {
    Hold {
        digest: release(version).digest,
        version: version.parse().unwrap(),
        why: "hangs".into(),
        until: None,
        has_failed,
        is_over: false,
    }
}

fn known() -> Record {
    record(Stage::Target(target("v0.2.0")))
}

fn approved() -> Record {
    record(Stage::Target(Target {
        approved: true,
        ..target("v0.2.0")
    }))
}

fn paused() -> Record {
    record(Stage::Target(Target {
        not_before: Some((NOW + 1, "no room".into())),
        ..target("v0.2.0")
    }))
}

fn closed() -> Window {
    "02:00-03:00".parse().unwrap()
}

fn open() -> Window {
    "00:55-02:00".parse().unwrap()
}

fn in_window(window: &Window) -> Policy<'_> {
    Policy {
        window: Some(window),
        ..POLICY
    }
}

fn strict(window: &Window) -> Policy<'_> {
    Policy {
        delay: 60,
        window: Some(window),
        needs_approval: true,
        lock: Some(&HERE),
        ..POLICY
    }
}

#[test]
fn a_target_waits_for_its_time_and_its_image() {
    check([
        (
            "all is there",
            known(),
            |_| {},
            POLICY,
            ("switching", Act::Switch),
        ),
        (
            "a window, and no time",
            known(),
            |it| it.knows_time = false,
            in_window(&closed()),
            ("clock", Act::None),
        ),
        (
            "no window and no time",
            known(),
            |it| it.knows_time = false,
            POLICY,
            ("switching", Act::Switch),
        ),
        (
            "it was refused",
            paused(),
            |_| {},
            POLICY,
            ("refused", Act::None),
        ),
        (
            "its own delay",
            known(),
            |it| it.now = 1030,
            strict(&open()),
            ("delay", Act::None),
        ),
        (
            "not fetched",
            known(),
            |it| it.fetched = Fetched::No("5 of 10 bytes".into()),
            POLICY,
            ("fetching", Act::None),
        ),
    ]);
}

#[test]
fn a_target_waits_for_an_approval() {
    check([
        (
            "not approved",
            known(),
            |_| {},
            strict(&open()),
            ("approval", Act::None),
        ),
        (
            "approved by a call",
            approved(),
            |_| {},
            strict(&open()),
            ("lock", Act::Lock),
        ),
        (
            "approved by a key",
            known(),
            |it| it.is_signed = true,
            strict(&open()),
            ("lock", Act::Lock),
        ),
    ]);
}

#[test]
fn a_target_waits_for_its_window_and_the_lock() {
    check([
        (
            "its window is closed",
            known(),
            |_| {},
            in_window(&closed()),
            ("window", Act::None),
        ),
        (
            "its own delay within the window",
            known(),
            |_| {},
            Policy {
                delay: 600,
                ..in_window(&open())
            },
            ("delay", Act::None),
        ),
        (
            "busy",
            known(),
            |it| it.is_busy = true,
            POLICY,
            ("busy", Act::None),
        ),
        (
            "an old list",
            known(),
            |it| it.list_is_fresh = false,
            POLICY,
            ("list", Act::Look),
        ),
        (
            "another machine has the lock",
            approved(),
            |it| it.lock = LockAnswer::Refused("taken".into()),
            strict(&open()),
            ("lock", Act::Lock),
        ),
        (
            "it has the lock",
            approved(),
            |it| it.lock = LockAnswer::Granted,
            strict(&open()),
            ("switching", Act::Switch),
        ),
    ]);
}

#[test]
fn the_record_says_what_is_about_to_be_done_before_it_is() {
    let new = release("v0.2.0");
    let facts = facts("v0.1.0", offered(&new));
    let begun = step(record(Stage::Idle), &facts, &POLICY);
    assert!(matches!(begun.record.stage, Stage::Switching(ref it) if it.target.tries == 1));
    let locking = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let asked = step(record(Stage::Idle), &facts, &locking);
    assert_eq!((asked.act, asked.record.has_lock), (Act::Lock, true));
}

#[test]
fn a_release_that_is_chosen_no_more_is_left_and_a_newer_one_begins_anew() {
    let old = Target {
        approved: true,
        tries: 2,
        ..target("v0.2.0")
    };
    let waiting = record(Stage::Target(old));
    let shut: Window = "02:00-03:00".parse().unwrap();
    let policy = Policy {
        window: Some(&shut),
        needs_approval: true,
        ..POLICY
    };
    let withdrawn = step(waiting.clone(), &facts("v0.1.0", NOTHING), &policy);
    assert_eq!(withdrawn.record.stage, Stage::Idle);
    let newer = release("v0.3.0");
    let facts_of = facts("v0.1.0", offered(&newer));
    let replaced = step(waiting.clone(), &facts_of, &policy);
    let Stage::Target(target) = replaced.record.stage else {
        panic!("{replaced:?}");
    };
    assert_eq!(
        (target.seen, target.approved, target.tries),
        (NOW, false, 0)
    );
    // Without a list, what the record has stays, unless it runs by now.
    let stays = step(waiting.clone(), &facts("v0.1.0", Chosen::Unknown), &policy);
    assert_eq!(stays.record, waiting);
    let runs = step(waiting, &facts("v0.2.0", Chosen::Unknown), &policy);
    assert_eq!(runs.record.stage, Stage::Idle);
}

#[test]
fn a_switch_ends_in_a_trial_a_hold_or_another_try() {
    let new = release("v0.2.0");
    let switching = |tries| record(Stage::Switching(attempt("v0.2.0", tries)));
    let here = facts("v0.2.0", NOTHING);
    assert_eq!(waits(&switching(1), &here, &POLICY), ("proving", Act::None));
    let other_image = Facts {
        running_digest: Some(Digest::of(b"other")),
        is_busy: true,
        ..here
    };
    assert_eq!(waits(&switching(1), &other_image, &POLICY).0, "switching");
    let back = facts("v0.1.0", offered(&new));
    let busy = Facts {
        is_busy: true,
        ..back.clone()
    };
    assert_eq!(
        waits(&switching(1), &busy, &POLICY),
        ("switching", Act::None)
    );
    // Killed before the upgrade began.
    let again = step(switching(2), &back, &POLICY);
    assert!(matches!(&again.record.stage, Stage::Switching(it) if it.target.tries == 3));
    let nothing = facts("v0.1.0", NOTHING);
    let often = step(switching(3), &nothing, &POLICY);
    assert!(often.record.holds[0].why.contains("begun 3 times"));
    let failed = Facts {
        failure: Some("hangs".into()),
        ..nothing
    };
    let policy = Policy {
        hold_for: Some(10),
        ..POLICY
    };
    let held = step(switching(1), &failed, &policy).record;
    assert_eq!(
        (held.stage, held.holds[0].until),
        (Stage::Idle, Some(NOW + 10))
    );
    assert_eq!(held.holds[0].why, "hangs");
}

#[test]
fn an_upgrade_that_was_refused_is_tried_again_later() {
    let begun = record(Stage::Switching(attempt("v0.2.0", 1)));
    let refused = begun.refused("no room".into(), NOW);
    let Stage::Target(target) = &refused.stage else {
        panic!("{refused:?}");
    };
    assert_eq!((target.tries, target.not_before.is_some()), (0, true));
}

#[test]
fn a_release_proves_itself_or_the_machine_goes_back() {
    let proving = record(Stage::Proving(attempt("v0.2.0", 1)));
    let at = |ready_for, watched_for| Facts {
        ready_for,
        watched_for,
        ..facts("v0.2.0", NOTHING)
    };
    assert_eq!(waits(&proving, &at(Some(59), 59), &POLICY).0, "proving");
    assert_eq!(waits(&proving, &at(None, 600), &POLICY).0, "proving");
    let proven = step(proving.clone(), &at(Some(60), 100), &POLICY);
    assert_eq!(proven.record.stage, Stage::Idle);
    assert!(proven.record.holds.is_empty());
    let mut returning = step(proving.clone(), &at(None, 661), &POLICY);
    for _ in 0..2 {
        assert_eq!(returning.act, Act::GoBack);
        returning = step(returning.record, &at(None, 662), &POLICY);
    }
    let stuck = step(returning.record.clone(), &at(None, 663), &POLICY);
    assert!(stuck.record.holds[0].why.contains("cannot go back"));
    let back = step(returning.record, &facts("v0.1.0", NOTHING), &POLICY);
    assert!(back.record.holds[0].why.contains("was not ready"));
    // Somebody else took it back.
    let gone = step(proving, &facts("v0.1.0", NOTHING), &POLICY);
    assert!(gone.record.holds[0].why.contains("went to v0.1.0"));
}

#[test]
fn the_lock_is_given_back_after_a_proof_and_kept_after_a_failure() {
    let policy = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let with_lock = |stage| Record {
        has_lock: true,
        lock_at: Some(HERE.clone()),
        ..record(stage)
    };
    let proven = Facts {
        ready_for: Some(60),
        ..facts("v0.2.0", NOTHING)
    };
    let proving = with_lock(Stage::Proving(attempt("v0.2.0", 1)));
    assert_eq!(waits(&proving, &proven, &policy), ("current", Act::Unlock));
    // The facts of the step in which it fails do not know of the hold yet.
    let hangs = Facts {
        failure: Some("hangs".into()),
        ..facts("v0.1.0", NOTHING)
    };
    let switching = with_lock(Stage::Switching(attempt("v0.2.0", 1)));
    assert_eq!(waits(&switching, &hangs, &policy), ("locked", Act::None));
    let mut failed = with_lock(Stage::Idle);
    failed.hold_release(hold_of("v0.2.0", true));
    let offers_failed = Chosen::None {
        offers_failed: true,
    };
    for (chosen, expected) in [
        (offers_failed, ("locked", Act::None)),
        (Chosen::Unknown, ("locked", Act::None)),
        (NOTHING, ("current", Act::Unlock)),
    ] {
        assert_eq!(waits(&failed, &facts("v0.1.0", chosen), &policy), expected);
    }
    // A person who holds it besides says nothing that lets the other machines go to it.
    for _ in 0..2 {
        failed.hold_release(Hold {
            why: "a person holds it".into(),
            ..hold_of("v0.2.0", false)
        });
        let hold = failed.hold(release("v0.2.0").digest).unwrap();
        assert!(hold.has_failed);
        assert_eq!(hold.why, "hangs; a person holds it");
    }
    let bad = release("v0.2.0");
    assert!(failed.offers_failed(&Choice {
        release: None,
        reasons: vec![(&bad, Why::Held("hangs".into()))],
    }));
    let no_list = facts("v0.1.0", Chosen::Unknown);
    assert_eq!(waits(&failed, &no_list, &policy), ("locked", Act::None));
    // The next good release is taken with the lock that is kept.
    let next = release("v0.3.0");
    let granted = Facts {
        lock: LockAnswer::Granted,
        ..facts("v0.1.0", offered(&next))
    };
    assert_eq!(waits(&failed, &granted, &policy).1, Act::Switch);
    // Without a lock in the config, nobody knows where one is that a version before this one has noted.
    failed.lock_at = None;
    let forgotten = step(failed, &facts("v0.1.0", NOTHING), &POLICY);
    assert_eq!(
        (forgotten.act, forgotten.record.has_lock),
        (Act::None, false)
    );
    assert!(forgotten.record.owed.is_empty());
}

/// The machine has no disk, and took the lock before its reboot.
#[test]
fn a_machine_that_lost_its_record_gives_the_lock_back_once_it_is_healthy() {
    let lost = Record::begin("stable".into(), "me".into());
    let locking = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let shut = closed();
    let waiting = Policy {
        window: Some(&shut),
        ..locking.clone()
    };
    let new = release("v0.2.0");
    for (ready_for, expected) in [
        (None, Act::None),
        (Some(0), Act::None),
        (Some(59), Act::None),
        (Some(60), Act::Unlock),
    ] {
        let facts = |chosen| Facts {
            ready_for,
            ..facts("v0.1.0", chosen)
        };
        let idle = step(lost.clone(), &facts(NOTHING), &locking);
        assert_eq!(idle.act, expected, "{ready_for:?}");
        let waits = step(lost.clone(), &facts(offered(&new)), &waiting);
        assert_eq!(waits.act, expected, "{ready_for:?}");
        let no_list = Facts {
            list_is_fresh: false,
            ..facts(offered(&new))
        };
        let looks = match expected {
            Act::None => Act::Look,
            other => other,
        };
        assert_eq!(step(lost.clone(), &no_list, &locking).act, looks);
    }
    // Nothing but its own readiness has to pass before the next look.
    let soon = Facts {
        ready_for: Some(50),
        ..facts("v0.1.0", NOTHING)
    };
    assert_eq!(step(lost.clone(), &soon, &locking).again, 10);
    // A release that is to be taken is taken with the lock that it may have.
    let next = step(lost, &facts("v0.1.0", offered(&new)), &locking);
    assert_eq!(
        (next.act, next.record.lock_at),
        (Act::Lock, Some(HERE.clone()))
    );
}

/// A person went back from the release, or holds it besides its failure: the others are not to go to it.
#[test]
fn a_lock_that_is_kept_for_a_person_is_not_given_back_by_a_healthy_machine() {
    let locking = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let healthy = Facts {
        ready_for: Some(86_400),
        ..facts(
            "v0.1.0",
            Chosen::None {
                offers_failed: true,
            },
        )
    };
    let mut left = attempt("v0.2.0", 1);
    left.left_by_a_person = true;
    let proving = Record {
        has_lock: true,
        lock_at: Some(HERE.clone()),
        ..record(Stage::Proving(left))
    };
    let back = step(proving, &healthy, &locking).record;
    assert!(back.holds[0].why.contains("a person went back"));
    for lock_at in [Some(HERE.clone()), None] {
        // Also where a version before this one has not noted its place.
        let mut kept = Record {
            lock_at,
            ..back.clone()
        };
        kept.hold_release(hold_of("v0.2.0", false));
        assert_eq!(waits(&kept, &healthy, &locking), ("locked", Act::None));
    }
}

/// The groups of the locks that a record owes.
fn owed(record: &Record) -> Vec<&str> {
    let owed = record.owed.iter();
    owed.map(|owed| owed.at.group.as_str()).collect()
}

/// The config of a machine that keeps the lock after a failure gets another lock, or none.
#[test]
fn a_lock_that_the_config_names_no_more_is_owed() {
    let other = place("kitchen");
    let in_kitchen = Policy {
        lock: Some(&other),
        ..POLICY
    };
    let mut failed = record(Stage::Idle);
    (failed.has_lock, failed.lock_at) = (true, Some(HERE.clone()));
    failed.hold_release(hold_of("v0.3.0", true));
    let offers_failed = facts(
        "v0.1.0",
        Chosen::None {
            offers_failed: true,
        },
    );
    let (older, shut) = (release("v0.2.0"), closed());
    let waiting = Policy {
        window: Some(&shut),
        ..in_kitchen.clone()
    };
    for (facts, policy) in [
        (&offers_failed, &POLICY),
        (&offers_failed, &in_kitchen),
        (&facts("v0.1.0", offered(&older)), &waiting),
    ] {
        let left = step(failed.clone(), facts, policy);
        assert_eq!((left.act, left.record.has_lock), (Act::None, false));
        assert_eq!(owed(&left.record), ["drawer"]);
    }
    // The lock is needed until the switch that it was taken for has proved itself.
    let proving = Record {
        stage: Stage::Proving(attempt("v0.2.0", 1)),
        ..failed.clone()
    };
    let stays = step(proving.clone(), &facts("v0.2.0", NOTHING), &in_kitchen);
    assert!(stays.record.has_lock && stays.record.owed.is_empty());
    let proven = Facts {
        ready_for: Some(60),
        ..facts("v0.2.0", NOTHING)
    };
    assert_eq!(
        owed(&step(proving, &proven, &in_kitchen).record),
        ["drawer"]
    );
    // The machine follows no channel for a while.
    let mut left = failed.clone();
    left.leave_lock();
    assert_eq!((left.has_lock, owed(&left)), (false, vec!["drawer"]));
    let locking = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let back = step(left, &offers_failed, &locking);
    assert_eq!(back.record, failed);
}

#[test]
fn a_server_is_asked_to_take_a_lock_back_until_it_does_or_often_enough() {
    let at = place("drawer");
    let mut owing = record(Stage::Idle);
    (owing.has_lock, owing.lock_at) = (true, Some(at.clone()));
    owing.leave_lock();
    let mut taken = owing.clone();
    assert_eq!(taken.gave_back(&at, false), Owes::Still);
    assert_eq!(taken.gave_back(&at, true), Owes::Nothing);
    assert!(taken.owed.is_empty());
    let answers: Vec<Owes> = (0..33).map(|_| owing.gave_back(&at, false)).collect();
    assert_eq!(answers[30..], [Owes::Still, Owes::GivenUp, Owes::Nothing]);
    assert!(owing.owed.is_empty());
}

/// The admin gives all machines another key, or another channel.
#[test]
fn another_key_resets_the_position_alone() {
    let proving = Record {
        position: Some(Position {
            serial: 7,
            list: Digest::of(b"list"),
        }),
        has_lock: true,
        lock_at: Some(HERE.clone()),
        holds: vec![hold_of("v0.3.0", true), hold_of("v0.4.0", false)],
        ..record(Stage::Proving(attempt("v0.2.0", 1)))
    };
    let mut turned = proving.clone();
    turned.turn_to("stable by another".into());
    assert_eq!(
        (&turned.position, turned.source.as_str()),
        (&None, "stable by another")
    );
    let same = Record {
        position: proving.position.clone(),
        source: proving.source.clone(),
        ..turned
    };
    assert_eq!(same, proving);
    // Nothing was begun for a target, and another list chose it.
    let mut waiting = approved();
    waiting.turn_to("stable by another".into());
    assert_eq!(waiting.stage, Stage::Idle);
}

/// Each start begins both times anew, so that neither of them ever ends.
#[test]
fn a_release_that_keeps_restarting_the_machine_fails() {
    const ASKED: bool = true;
    const BY_ITSELF: bool = false;
    // The starts after the first one, and what comes after the last one.
    let table: [(&[bool], &str, Act); 5] = [
        (&[], "proving", Act::None),
        (&[BY_ITSELF, BY_ITSELF], "proving", Act::None),
        (&[BY_ITSELF, BY_ITSELF, BY_ITSELF], "returning", Act::GoBack),
        (&[ASKED, ASKED, ASKED, ASKED], "proving", Act::None),
        (
            &[BY_ITSELF, ASKED, BY_ITSELF, ASKED, BY_ITSELF],
            "returning",
            Act::GoBack,
        ),
    ];
    for (starts, word, act) in table {
        let begun = record(Stage::Switching(attempt("v0.2.0", 1)));
        let at = |number: usize| Facts {
            start: number.to_string(),
            ..facts("v0.2.0", NOTHING)
        };
        let mut next = step(begun, &at(0), &POLICY);
        for (number, asked) in starts.iter().enumerate() {
            if *asked {
                next.record.expect_start();
                // The machine takes some steps more before it ends.
                next = step(next.record, &at(number), &POLICY);
            }
            next = step(next.record, &at(number + 1), &POLICY);
        }
        assert_eq!((next.standing.word(), next.act), (word, act), "{starts:?}");
        if let Standing::Returns(why) = &next.standing {
            assert!(why.contains("restarted 3 times by itself"), "{why}");
        }
    }
}

/// A record of the version before this one, which the machine finds after an upgrade.
#[test]
fn a_record_without_the_newer_fields_is_read() {
    let known = Record {
        has_lock: true,
        ..record(Stage::Proving(attempt("v0.2.0", 1)))
    };
    let mut json = serde_json::to_value(&known).unwrap();
    for field in ["lockAt", "owed"] {
        json.as_object_mut().unwrap().remove(field).unwrap();
    }
    let proving = json["stage"]["proving"].as_object_mut().unwrap();
    for field in ["start", "expectsStart", "restarts", "leftByAPerson"] {
        proving.remove(field).unwrap();
    }
    let read: Record = serde_json::from_value(json).unwrap();
    assert_eq!(read, known);
}

/// An older release can be taken and waits for something, while the channel offers the one that failed here.
#[test]
fn the_lock_is_kept_after_a_failure_while_an_older_release_waits() {
    let (shut, older) = (closed(), release("v0.2.0"));
    let locking = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let fetching: fn(&mut Facts<'_>) = |it| it.fetched = Fetched::No("5 of 10 bytes".into());
    let idle = || record(Stage::Idle);
    let in_window = Policy {
        window: Some(&shut),
        ..locking.clone()
    };
    let by_approval = Policy {
        needs_approval: true,
        ..locking.clone()
    };
    let delayed = Policy {
        delay: 60,
        ..locking.clone()
    };
    let no_list: fn(&mut Facts<'_>) = |it| {
        it.chosen = Chosen::Unknown;
        it.fetched = Fetched::No("it is not asked for yet".into());
    };
    for (word, record, change, policy) in [
        ("fetching", idle(), fetching, &locking),
        ("window", idle(), |_| {}, &in_window),
        ("approval", idle(), |_| {}, &by_approval),
        ("delay", idle(), |_| {}, &delayed),
        ("refused", paused(), |_| {}, &locking),
        ("fetching", known(), no_list, &locking),
    ] {
        for (version, has_failed, act) in [
            ("v0.3.0", true, Act::None),
            // A person's hold is no failure, and what failed below the target is what the target replaces.
            ("v0.3.0", false, Act::Unlock),
            ("v0.1.1", true, Act::Unlock),
        ] {
            let mut facts = facts(
                "v0.1.0",
                Chosen::Release {
                    release: &older,
                    offers_failed: act == Act::None,
                },
            );
            change(&mut facts);
            let mut locked = Record {
                has_lock: true,
                lock_at: Some(HERE.clone()),
                ..record.clone()
            };
            locked.hold_release(hold_of(version, has_failed));
            let expected = (word, act);
            assert_eq!(waits(&locked, &facts, policy), expected, "{version}");
        }
    }
}

/// The release that failed was withdrawn, and the other machines may go to the older one that waits here.
#[test]
fn the_lock_is_given_back_when_what_failed_is_withdrawn() {
    let (shut, older) = (closed(), release("v0.2.0"));
    let policy = Policy {
        lock: Some(&HERE),
        ..in_window(&shut)
    };
    let mut failed = record(Stage::Idle);
    (failed.has_lock, failed.lock_at) = (true, Some(HERE.clone()));
    failed.hold_release(hold_of("v0.3.0", true));
    let bad = release("v0.3.0");
    let offers = |why| {
        failed.offers_failed(&Choice {
            release: Some(&older),
            reasons: vec![(&bad, why), (&older, Why::Chosen)],
        })
    };
    assert!(offers(Why::Held("hangs".into())));
    assert!(!offers(Why::Withdrawn("hangs".into())));
    let withdrawn = facts("v0.1.0", offered(&older));
    assert_eq!(waits(&failed, &withdrawn, &policy), ("window", Act::Unlock));
}

/// A machine that came up without a list knows neither of a withdrawal nor whether its list has expired.
#[test]
fn the_record_alone_starts_nothing() {
    let locking = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let no_list = facts("v0.1.0", Chosen::Unknown);
    assert_eq!(waits(&known(), &no_list, &POLICY), ("list", Act::Look));
    let again = step(known(), &no_list, &POLICY).again;
    assert_eq!(again, 60);
    // A lock that it may have is for the other machines meanwhile, and then the list is asked for.
    let mut locked = Record {
        has_lock: true,
        lock_at: Some(HERE.clone()),
        ..known()
    };
    assert_eq!(waits(&locked, &no_list, &locking), ("list", Act::Unlock));
    locked.hold_release(hold_of("v0.3.0", true));
    assert_eq!(waits(&locked, &no_list, &locking), ("list", Act::Look));
}

#[test]
fn a_release_that_a_person_went_back_from_is_held() {
    let (new, version) = (release("v0.2.0"), "v0.2.0".parse::<Version>().unwrap());
    let mut left = record(Stage::Idle);
    left.leave(new.digest, version.clone(), "v0.1.0");
    let hold = left.hold(new.digest).unwrap();
    assert_eq!(hold.why, "a person went back from it to v0.1.0");
    assert!(!hold.has_failed && hold.until.is_none());
    // Nothing was begun for a target, which somebody has upgraded to by hand.
    let mut by_hand = known();
    by_hand.leave(new.digest, version.clone(), "v0.1.0");
    assert!(by_hand.hold(new.digest).is_some());
    // One that was to prove itself has failed here, without an end either.
    let for_a_while = Policy {
        hold_for: Some(10),
        ..POLICY
    };
    for stage in [Stage::Switching, Stage::Proving] {
        let mut proving = record(stage(attempt("v0.2.0", 1)));
        proving.leave(new.digest, version.clone(), "v0.1.0");
        assert!(proving.holds.is_empty());
        // The last seconds before it starts again prove nothing.
        let ready = Facts {
            ready_for: Some(60),
            ..facts("v0.2.0", NOTHING)
        };
        let leaving = step(proving, &ready, &for_a_while);
        let told = (leaving.standing.word(), leaving.act);
        assert_eq!(told, ("returning", Act::None));
        let back = step(leaving.record, &facts("v0.1.0", NOTHING), &for_a_while);
        let hold = back.record.hold(new.digest).unwrap();
        assert!(hold.has_failed && hold.until.is_none());
        assert_eq!(hold.why, "a person went back from it to v0.1.0");
    }
    // The machine was back before the step that would have seen the release run.
    let mut switching = record(Stage::Switching(attempt("v0.2.0", 1)));
    switching.leave(new.digest, version.clone(), "v0.1.0");
    let back = step(switching, &facts("v0.1.0", offered(&new)), &for_a_while);
    assert!(back.record.hold(new.digest).unwrap().until.is_none());
}

#[test]
fn a_way_back_that_is_the_machines_own_or_leads_nowhere_is_no_person_s_word() {
    let (new, version) = (release("v0.2.0"), "v0.2.0".parse::<Version>().unwrap());
    let for_a_while = Policy {
        hold_for: Some(10),
        ..POLICY
    };
    let stage = Stage::Returning(attempt("v0.2.0", 1), "it was not ready".into());
    let mut returning = record(stage);
    returning.leave(new.digest, version.clone(), "v0.1.0");
    let back = step(returning, &facts("v0.1.0", NOTHING), &for_a_while);
    let hold = back.record.hold(new.digest).unwrap();
    assert_eq!(
        (hold.why.as_str(), hold.until),
        ("it was not ready", Some(NOW + 10))
    );
    // The machine comes up with the release after all.
    let proving = record(Stage::Proving(attempt("v0.2.0", 1)));
    let here = facts("v0.2.0", NOTHING);
    let mut seen = step(proving, &here, &for_a_while).record;
    seen.leave(new.digest, version, "v0.1.0");
    let again = Facts {
        start: "second".into(),
        ready_for: Some(60),
        ..here
    };
    let proven = step(seen, &again, &for_a_while).record;
    assert_eq!((proven.stage, proven.holds.len()), (Stage::Idle, 0));
}

#[test]
fn times_of_a_clock_that_was_ahead_are_cut_when_it_is_right() {
    let ahead = record(Stage::Target(Target {
        seen: NOW + 86_400,
        not_before: Some((NOW + 90_000, "no room".into())),
        ..target("v0.2.0")
    }));
    let (new, delayed) = (
        release("v0.2.0"),
        Policy {
            delay: 60,
            ..POLICY
        },
    );
    let right = facts("v0.1.0", offered(&new));
    let cut = step(ahead.clone(), &right, &delayed);
    assert_eq!(cut.standing.until(), Some(NOW + 600));
    assert_eq!(cut.record.target().unwrap().seen, NOW);
    let unset = Facts {
        knows_time: false,
        ..right
    };
    let stays = step(ahead.clone(), &unset, &delayed);
    assert_eq!(stays.record, ahead);
}

#[test]
fn a_hold_ends_with_its_time_and_a_person_s_hold_does_not() {
    let mut held = record(Stage::Idle);
    let hold = |name: &[u8], until, has_failed| Hold {
        digest: Digest::of(name),
        version: "v0.2.0".parse().unwrap(),
        why: String::new(),
        until,
        has_failed,
        is_over: false,
    };
    held.hold_release(hold(b"a", Some(NOW), true));
    held.hold_release(hold(b"b", Some(NOW + 1), true));
    held.hold_release(hold(b"c", None, false));
    held.hold_release(hold(b"c", Some(NOW), true));
    let forgiven = step(held.clone(), &facts("v0.1.0", NOTHING), &POLICY);
    assert_eq!(forgiven.forgiven, [Digest::of(b"a")]);
    let is_held = |name: &[u8]| forgiven.record.hold(Digest::of(name)).is_some();
    assert_eq!(
        [b"a", b"b", b"c"].map(|it| is_held(it)),
        [false, true, true]
    );
    let again = step(forgiven.record.clone(), &facts("v0.1.0", NOTHING), &POLICY);
    assert!(again.forgiven.is_empty());
    let no_time = Facts {
        knows_time: false,
        ..facts("v0.1.0", NOTHING)
    };
    let early = step(held, &no_time, &POLICY).record;
    assert!(early.hold(Digest::of(b"a")).is_some());
}

/// The only release of the channel fails, and is held for a while.
fn failed_for_a_while() -> Record {
    let mut failed = record(Stage::Idle);
    failed.has_lock = true;
    failed.hold_release(Hold {
        until: Some(NOW),
        ..hold_of("v0.2.0", true)
    });
    failed
}

/// The choice of a list with one release.
fn alone(release: &Release, why: Why) -> Choice<'_> {
    Choice {
        release: (why == Why::Chosen).then_some(release),
        reasons: vec![(release, why)],
    }
}

#[test]
fn the_lock_is_kept_when_the_hold_of_what_failed_is_over() {
    let (shut, bad) = (closed(), release("v0.2.0"));
    let locking = Policy {
        lock: Some(&HERE),
        ..POLICY
    };
    let in_window = Policy {
        window: Some(&shut),
        ..locking.clone()
    };
    let ended = step(failed_for_a_while(), &facts("v0.1.0", NOTHING), &POLICY);
    let mut over = ended.record;
    (over.has_lock, over.lock_at) = (true, Some(HERE.clone()));
    assert!(over.hold(bad.digest).is_none());
    let offers_failed = over.offers_failed(&alone(&bad, Why::Chosen));
    let chosen = Chosen::Release {
        release: &bad,
        offers_failed,
    };
    let at = |chosen| facts("v0.1.0", chosen);
    let fetching = Facts {
        fetched: Fetched::No("5 of 10 bytes".into()),
        ..at(chosen)
    };
    let old_list = Facts {
        list_is_fresh: false,
        ..at(chosen)
    };
    for (facts, policy, expected) in [
        (&fetching, &locking, ("fetching", Act::None)),
        (&at(chosen), &in_window, ("window", Act::None)),
        (&old_list, &locking, ("list", Act::Look)),
        (&at(Chosen::Unknown), &locking, ("locked", Act::None)),
        // The list has expired.
        (
            &at(Chosen::None { offers_failed }),
            &locking,
            ("locked", Act::None),
        ),
        (&at(chosen), &locking, ("lock", Act::Lock)),
    ] {
        assert_eq!(waits(&over, facts, policy), expected);
    }
    // Nothing of the list is known after a restart.
    over.stage = Stage::Target(target("v0.2.0"));
    let no_list = at(Chosen::Unknown);
    assert_eq!(waits(&over, &no_list, &locking), ("list", Act::Look));
}

#[test]
fn what_failed_is_forgotten_when_it_has_proved_itself_or_is_offered_no_more() {
    let bad = release("v0.2.0");
    let over = step(failed_for_a_while(), &facts("v0.1.0", NOTHING), &POLICY).record;
    let mut proving = over.clone();
    proving.stage = Stage::Proving(attempt("v0.2.0", 1));
    let proven = Facts {
        ready_for: Some(60),
        ..facts("v0.2.0", NOTHING)
    };
    assert!(step(proving, &proven, &POLICY).record.holds.is_empty());
    let newer: Version = "v0.3.0".parse().unwrap();
    for (why, stays) in [
        (Why::Chosen, true),
        (Why::Held("its image has failed".into()), true),
        (Why::Passed(newer), true),
        (Why::Withdrawn("hangs".into()), false),
        (Why::Runs, false),
    ] {
        let mut known = over.clone();
        known.forget_withdrawn(&alone(&bad, why.clone()));
        assert_eq!(known.holds.len(), usize::from(stays), "{why}");
    }
    // A hold that is not over stays, whatever the list says.
    let mut held = failed_for_a_while();
    held.forget_withdrawn(&alone(&bad, Why::Withdrawn("hangs".into())));
    assert_eq!(held.holds.len(), 1);
}

#[test]
fn an_image_that_is_not_the_one_of_the_list_is_held() {
    let new = release("v0.2.0");
    let wrong = Facts {
        fetched: Fetched::Wrong("the image says v0.3.0".into()),
        ..facts("v0.1.0", offered(&new))
    };
    let held = step(record(Stage::Idle), &wrong, &POLICY).record;
    assert_eq!(held.holds[0].why, "the image says v0.3.0");
}

#[test]
fn words_and_reasons_are_for_people() {
    let words = RefCell::new(BTreeSet::new());
    for wait in [
        Wait::Clock,
        Wait::Delay(1),
        Wait::Pause(1, "x".into()),
        Wait::Image("x".into()),
        Wait::Approval,
        Wait::Window(1),
        Wait::Busy,
        Wait::List,
        Wait::Lock("x".into()),
    ] {
        let standing = Standing::Waits(wait);
        assert!(!standing.reason().is_empty());
        assert!(words.borrow_mut().insert(standing.word()));
    }
}

/// Random facts against a random history: a release that failed is never begun again while it is held, nothing is switched to twice at
/// once, and the lock is given back neither between the request and the proof nor while the list offers what has failed, also after the time of
/// its hold. A release that restarts the machine comes to an end, and a lock that was taken is known until it is given back.
#[test]
fn random_histories_keep_the_promises() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..2000 {
        History::begin(&mut random).live(&mut random);
    }
}

/// A machine of a random history.
struct History {
    record: Record,
    running: String,
    lock: LockAnswer,
    policy: Policy<'static>,
    /// The groups at whose locks this machine has a slot.
    slots: BTreeSet<String>,
    /// Releases that have failed here, have not proved themselves since, and were not withdrawn.
    failed: BTreeSet<Digest>,
    start: u32,
    /// Restarts that nobody has asked for, since the release began to prove itself.
    restarts: u32,
}

static ELSEWHERE: LazyLock<LockPlace> = LazyLock::new(|| place("kitchen"));

/// The good release, and the bad one, which is older.
static BOTH: LazyLock<[Release; 2]> = LazyLock::new(|| [release("v0.3.0"), release("v0.2.0")]);

impl History {
    fn begin(random: &mut fastrand::Rng) -> Self {
        let policy = Policy {
            lock: random.bool().then_some(&*HERE),
            healthy_for: 2,
            hold_for: random.bool().then(|| random.u64(1..20)),
            ..POLICY
        };
        let mut record = record(Stage::Idle);
        if random.u8(0..4) == 0 {
            // The newest one has failed before, and the machine has kept the lock.
            record.has_lock = policy.lock.is_some();
            record.hold_release(Hold {
                until: policy.hold_for.map(|time| NOW + time),
                ..hold_of("v0.3.0", true)
            });
        }
        History {
            record,
            running: "v0.1.0".to_owned(),
            lock: LockAnswer::Unasked,
            policy,
            slots: BTreeSet::new(),
            failed: BTreeSet::new(),
            start: 0,
            restarts: 0,
        }
    }

    fn live(mut self, random: &mut fastrand::Rng) {
        for tick in 0..60 {
            self.happen(random);
            self.go_on(tick, random);
            self.keeps_its_promises();
        }
    }

    /// The machine starts again, its config changes, a person holds a release or goes back from it, or a lock is given back where it is owed.
    fn happen(&mut self, random: &mut fastrand::Rng) {
        match random.u8(0..26) {
            0..4 => {
                let is_asked = random.bool();
                if is_asked {
                    self.record.expect_start();
                }
                let proves = matches!(self.record.stage, Stage::Proving(_));
                self.restarts += u32::from(proves && !is_asked);
                self.start += 1;
                self.lock = LockAnswer::Unasked;
            }
            4 => {
                self.policy.lock = [None, Some(&*HERE), Some(&*ELSEWHERE)][random.usize(0..3)];
                self.lock = LockAnswer::Unasked;
            }
            5 => self.record.turn_to(format!("stable by {}", self.start)),
            6..8 => {
                if let Some(owed) = self.record.owed.first().cloned() {
                    self.record.gave_back(&owed.at, true);
                    self.slots.remove(&owed.at.group);
                }
            }
            8 => {
                let version = ["v0.2.0", "v0.3.0"][random.usize(0..2)];
                self.record.hold_release(hold_of(version, false));
            }
            9 => {
                if let Stage::Proving(attempt) = self.record.stage.clone() {
                    let Release {
                        digest, version, ..
                    } = attempt.target.release;
                    self.record.leave(digest, version, &attempt.from);
                    self.running = attempt.from;
                }
            }
            _ => {}
        }
    }

    /// What a list says to the machine, in which releases are withdrawn and come back at random. `None`: there is no list.
    fn choice(&self, random: &mut fastrand::Rng) -> Option<Choice<'static>> {
        let mut choice = Choice {
            release: None,
            reasons: Vec::new(),
        };
        let running: Version = self.running.parse().unwrap();
        for release in BOTH.iter() {
            let why = match choice.release {
                _ if release.version == running => Why::Runs,
                _ if random.u8(0..3) == 0 => Why::Withdrawn("hangs".into()),
                _ if release.version < running => Why::NotNewer,
                _ if self.record.hold(release.digest).is_some() => Why::Held("hangs".into()),
                Some(newer) => Why::Passed(Version::clone(&newer.version)),
                None => {
                    choice.release = Some(release);
                    Why::Chosen
                }
            };
            choice.reasons.push((release, why));
        }
        (random.u8(0..4) > 0).then_some(choice)
    }

    fn go_on(&mut self, tick: u64, random: &mut fastrand::Rng) {
        let choice = self.choice(random);
        let has_expired = random.u8(0..8) == 0;
        let chosen = choice.as_ref().map_or(Chosen::Unknown, |choice| {
            let offers_failed = self.record.offers_failed(choice);
            match choice.release.filter(|_| !has_expired) {
                Some(release) => Chosen::Release {
                    release,
                    offers_failed,
                },
                None => Chosen::None { offers_failed },
            }
        });
        let running = self.running.clone();
        let facts = Facts {
            now: NOW + tick,
            lock: self.lock.clone(),
            is_busy: random.u8(0..4) == 0,
            fetched: match random.u8(0..4) {
                0 => Fetched::No("it comes".into()),
                _ => Fetched::Yes,
            },
            failure: (random.u8(0..8) == 0).then(|| "hangs".into()),
            ready_for: random.bool().then(|| random.u64(0..4)),
            start: self.start.to_string(),
            ..facts(&running, chosen)
        };
        if let Some(choice) = &choice {
            self.record.forget_withdrawn(choice);
        }
        let had_lock = self.record.has_lock;
        let next = step(self.record.clone(), &facts, &self.policy);
        self.note_failures(&next.record, choice.as_ref());
        self.record = next.record;
        match next.act {
            Act::Switch => self.switch(random),
            Act::Lock => {
                self.lock = match random.bool() {
                    true => LockAnswer::Granted,
                    false => LockAnswer::Refused("taken".into()),
                };
                if self.lock == LockAnswer::Granted {
                    self.slots.insert(self.policy.lock.unwrap().group.clone());
                }
            }
            Act::Unlock => {
                assert!(had_lock || self.record.has_lock);
                self.unlock(choice.as_ref());
            }
            Act::GoBack => {
                if let (Stage::Returning(attempt, _), true) = (&self.record.stage, random.bool()) {
                    self.running.clone_from(&attempt.from);
                }
            }
            Act::Look | Act::None => {}
        }
    }

    /// Keeps beside the record which releases have failed.
    fn note_failures(&mut self, next: &Record, choice: Option<&Choice<'_>>) {
        let (before, after) = (&self.record.stage, &next.stage);
        // If it has failed, its hold says so below.
        if let (Stage::Switching(attempt) | Stage::Proving(attempt), Stage::Idle) = (before, after)
        {
            self.failed.remove(&attempt.target.release.digest);
        }
        let reasons = choice.iter().flat_map(|choice| &choice.reasons);
        for (release, why) in reasons {
            if !matches!(why, Why::Held(_) | Why::Chosen | Why::Passed(_)) {
                self.failed.remove(&release.digest);
            }
        }
        let holds = next.holds.iter();
        let failed = holds.filter(|hold| hold.has_failed && !hold.is_over);
        self.failed.extend(failed.map(|hold| hold.digest));
    }

    fn unlock(&mut self, choice: Option<&Choice<'_>>) {
        let is_under_way = !matches!(self.record.stage, Stage::Idle | Stage::Target(_));
        assert!(!is_under_way, "given back before the proof");
        let goes_to = match choice {
            Some(choice) => choice.release,
            None => self.record.target().map(|target| &target.release),
        };
        for release in BOTH.iter().filter(|it| self.failed.contains(&it.digest)) {
            let is_offered = choice.is_none_or(|choice| {
                let mut reasons = choice.reasons.iter();
                reasons.any(|(it, why)| {
                    *it == release && matches!(why, Why::Held(_) | Why::Chosen | Why::Passed(_))
                })
            });
            let is_replaced = goes_to.is_some_and(|it| it.version > release.version);
            assert!(!is_offered || is_replaced, "given back after a failure");
        }
        (self.record.has_lock, self.record.lock_at) = (false, None);
        self.slots.remove(&self.policy.lock.unwrap().group);
        self.lock = LockAnswer::Unasked;
    }

    fn switch(&mut self, random: &mut fastrand::Rng) {
        let is_locked = self.record.has_lock && self.lock == LockAnswer::Granted;
        assert!(self.policy.lock.is_none() || is_locked);
        let to = self.record.target().unwrap().release.clone();
        assert!(self.record.hold(to.digest).is_none(), "{to:?}");
        // The machine is killed before, or the version comes up.
        if random.bool() {
            self.running = to.version.to_string();
        }
        self.lock = LockAnswer::Unasked;
        self.restarts = 0;
    }

    fn keeps_its_promises(&self) {
        let record = &self.record;
        if let Stage::Proving(_) = record.stage {
            assert!(self.restarts <= 2, "it proves itself for ever");
        }
        let has = record.lock_at.iter().filter(|_| record.has_lock);
        let known: Vec<&str> = has
            .map(|at| at.group.as_str())
            .chain(owed(record))
            .collect();
        for group in &self.slots {
            assert!(known.contains(&group.as_str()), "{group} leaks: {record:?}");
        }
    }
}
