//! The record: what another key leaves of it, and what an older version has written.

use instar_channel::Position;

use super::*;

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
