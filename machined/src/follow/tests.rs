//! The table of steps, and properties over random histories.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;

use instar_channel::{Choice, Date, Release, Why};

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
    }
}

const POLICY: Policy<'_> = Policy {
    delay: 0,
    window: None,
    needs_approval: false,
    has_lock: false,
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
        has_lock: true,
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
        has_lock: true,
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
        has_lock: true,
        ..POLICY
    };
    let with_lock = |stage| Record {
        has_lock: true,
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
    failed.hold_release(Hold {
        digest: Digest::of(b"bad"),
        version: "v0.2.0".parse().unwrap(),
        why: "hangs".into(),
        until: None,
        has_failed: true,
    });
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
    // The next good release is taken with the lock that is kept.
    let next = release("v0.3.0");
    let granted = Facts {
        lock: LockAnswer::Granted,
        ..facts("v0.1.0", offered(&next))
    };
    assert_eq!(waits(&failed, &granted, &policy).1, Act::Switch);
    // Without a lock in the config there is nothing to give back.
    assert_eq!(
        waits(&failed, &facts("v0.1.0", NOTHING), &POLICY).1,
        Act::None
    );
}

/// An older release can be taken and waits for something, while the channel offers the one that failed here.
#[test]
fn the_lock_is_kept_after_a_failure_while_an_older_release_waits() {
    let (shut, older) = (closed(), release("v0.2.0"));
    let locking = Policy {
        has_lock: true,
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
        has_lock: true,
        ..in_window(&shut)
    };
    let mut failed = record(Stage::Idle);
    failed.has_lock = true;
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
        has_lock: true,
        ..POLICY
    };
    let no_list = facts("v0.1.0", Chosen::Unknown);
    assert_eq!(waits(&known(), &no_list, &POLICY), ("list", Act::Look));
    let again = step(known(), &no_list, &POLICY).again;
    assert_eq!(again, 60);
    // A lock that it may have is for the other machines meanwhile, and then the list is asked for.
    let mut locked = Record {
        has_lock: true,
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
    // One that was to prove itself has failed here.
    let mut proving = record(Stage::Proving(attempt("v0.2.0", 1)));
    proving.leave(new.digest, version, "v0.1.0");
    assert!(proving.holds.is_empty());
    let back = step(proving, &facts("v0.1.0", NOTHING), &POLICY);
    assert!(back.record.hold(new.digest).unwrap().has_failed);
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
    };
    held.hold_release(hold(b"a", Some(NOW), true));
    held.hold_release(hold(b"b", Some(NOW + 1), true));
    held.hold_release(hold(b"c", None, false));
    let forgiven = step(held.clone(), &facts("v0.1.0", NOTHING), &POLICY);
    assert_eq!(forgiven.forgiven, [Digest::of(b"a")]);
    assert_eq!(forgiven.record.holds.len(), 2);
    let no_time = Facts {
        knows_time: false,
        ..facts("v0.1.0", NOTHING)
    };
    assert_eq!(step(held, &no_time, &POLICY).record.holds.len(), 3);
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
    let words = RefCell::new(std::collections::BTreeSet::new());
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
/// once, and the lock is given back neither between the request and the proof nor while the machine goes to an older one than has failed.
#[test]
fn random_histories_keep_the_promises() {
    let mut random = fastrand::Rng::with_seed(7);
    let (good, bad) = (release("v0.3.0"), release("v0.2.0"));
    for _ in 0..2000 {
        let policy = Policy {
            has_lock: random.bool(),
            healthy_for: 2,
            ..POLICY
        };
        let mut record = record(Stage::Idle);
        if random.u8(0..4) == 0 {
            // The newest one has failed before, and the machine has kept the lock.
            record.has_lock = policy.has_lock;
            record.hold_release(hold_of("v0.3.0", true));
        }
        let (mut running, mut lock) = ("v0.1.0".to_owned(), LockAnswer::Unasked);
        for tick in 0..40 {
            let held = |it: &Release| record.hold(it.digest).is_some();
            let chosen = match random.u8(0..4) {
                0 => Chosen::Unknown,
                1 => Chosen::None {
                    offers_failed: held(&bad),
                },
                2 if !held(&bad) && running == "v0.1.0" => Chosen::Release {
                    release: &bad,
                    offers_failed: held(&good),
                },
                3 if !held(&good) && running != "v0.3.0" => offered(&good),
                _ => NOTHING,
            };
            let now_running = running.clone();
            let facts = Facts {
                now: NOW + tick,
                lock: lock.clone(),
                is_busy: random.u8(0..4) == 0,
                fetched: match random.u8(0..4) {
                    0 => Fetched::No("it comes".into()),
                    _ => Fetched::Yes,
                },
                failure: None,
                ready_for: random.bool().then(|| random.u64(0..4)),
                ..facts(&now_running, chosen)
            };
            let had_lock = record.has_lock;
            let next = step(record.clone(), &facts, &policy);
            record = next.record;
            match next.act {
                Act::Switch => {
                    assert!(!policy.has_lock || (record.has_lock && lock == LockAnswer::Granted));
                    let to = &record.target().unwrap().release;
                    assert!(record.hold(to.digest).is_none(), "{to:?}");
                    // The machine is killed before, or the version comes up.
                    if random.bool() {
                        running = to.version.to_string();
                    }
                    lock = LockAnswer::Unasked;
                }
                Act::Lock => {
                    lock = match random.bool() {
                        true => LockAnswer::Granted,
                        false => LockAnswer::Refused("taken".into()),
                    };
                }
                Act::Unlock => {
                    assert!(had_lock || record.has_lock);
                    let is_under_way = !matches!(record.stage, Stage::Idle | Stage::Target(_));
                    assert!(!is_under_way, "given back before the proof");
                    let is_older =
                        matches!(chosen, Chosen::Release { release, .. } if *release == bad);
                    let keeps = is_older && record.hold(good.digest).is_some();
                    assert!(!keeps, "given back after a failure");
                    record.has_lock = false;
                    lock = LockAnswer::Unasked;
                }
                Act::GoBack | Act::Look | Act::None => {}
            }
        }
    }
}
