//! A release that the channel has chosen waits: for its time, its image, an approval, its window, and the lock.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::*;

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

fn open() -> Window {
    "00:55-02:00".parse().unwrap()
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
