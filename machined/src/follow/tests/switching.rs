//! A release is switched to, and proves itself, or the machine goes back.

use super::*;

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
