//! The lock of a group of machines: kept, given back, and owed.

use super::*;

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
