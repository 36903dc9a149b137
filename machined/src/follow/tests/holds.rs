//! Releases that are held: by a failure, by a person, and for how long.

use super::*;
use crate::values::Version;

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
