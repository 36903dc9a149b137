//! The update of one machine: what a call of UpdateMachine does next. Pure.
//!
//! ```text
//!                 no pool                the pool has another image
//!                    │ Make                   │ Rename
//!                    ▼                        ▼
//!  ┌─────────── the pool of the machine's node, driven by the operator of its cluster ───────────┐
//!  │ Wait: not taken up, rolling, paused, held, in conflict with another pool                    │
//!  │ Finish: every node of it runs the image ──► the pool is deleted, the mark removed, answer 0 │
//!  │ Fail: halted, gone back, aborted, refused ──► the pool stays, for people; answer Failure    │
//!  └─────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A call after Finish begins again: the operator finds that the node runs the image, and nothing happens to it.

use crate::api::{Pool, PoolStatus};

/// What is known when a call comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// The image that the machine is to run.
    pub(super) image: &'a str,
    /// The pool of its node.
    pub(super) pool: Option<&'a Pool>,
}

/// What the call does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Make the pool.
    Make,
    /// Have the pool name the image.
    Rename,
    /// Nothing but wait; why.
    Wait(String),
    /// The machine runs the image.
    Finish,
    /// It does not, and will not by itself; why.
    Fail(String),
}

impl Step {
    /// Whether the machine must not be remediated after this step. One that failed may be, unless it is never to be replaced: an operator that
    /// gave up does not make a dead node well.
    pub(super) fn protects(&self, never_replace: bool) -> bool {
        match self {
            Self::Make | Self::Rename | Self::Wait(_) => true,
            Self::Finish => false,
            Self::Fail(_) => never_replace,
        }
    }
}

/// Decides.
pub(super) fn next(facts: Facts<'_>) -> Step {
    let Some(pool) = facts.pool else {
        return Step::Make;
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return Step::Wait("the pool of the last update is being deleted".to_owned());
    }
    if pool.spec.image.as_deref() != Some(facts.image) {
        return Step::Rename;
    }
    let not_taken_up = || Step::Wait("the operator has not taken up the pool yet".to_owned());
    let status = pool.status.as_ref().filter(|status| {
        status.observed_generation.is_some()
            && status.observed_generation == pool.metadata.generation
    });
    let Some(status) = status else {
        return not_taken_up();
    };
    let message = status.message.clone().unwrap_or_default();
    if status.phase.as_deref() == Some("Invalid") {
        // The other pool may go away; nothing else that is wrong does by itself.
        return match condition(status, "Valid") {
            Some((false, "NodeConflict")) => Step::Wait(message),
            _ => Step::Fail(message),
        };
    }
    let begun_with = status.rollout.as_ref().map(|it| it.image.as_str());
    if begun_with != Some(facts.image) {
        // What is shown is the rollout before this one, if there was one.
        return match (begun_with, message.is_empty()) {
            (None, false) => Step::Wait(message),
            _ => not_taken_up(),
        };
    }
    ended(status, message)
}

/// The same for a rollout of this image.
fn ended(status: &PoolStatus, message: String) -> Step {
    match (status.phase.as_deref(), condition(status, "Failed")) {
        (Some("Done"), _) if condition(status, "Updated").is_some_and(|(holds, _)| holds) => {
            match status.nodes {
                1 => Step::Finish,
                nodes => Step::Fail(format!("the pool has {nodes} nodes, not one")),
            }
        }
        // The node was left out of the rollout: a person holds it. It gets another one when it is released.
        (Some("Done"), _) if status.failed == 0 => Step::Wait(format!("{message}: it is held")),
        (Some("Halted" | "WentBack" | "Aborted" | "Done"), _) => Step::Fail(message),
        _ => Step::Wait(message),
    }
}

/// A condition: whether it holds, and its reason.
fn condition<'a>(status: &'a PoolStatus, kind: &str) -> Option<(bool, &'a str)> {
    let mut conditions = status.conditions.iter();
    let found = conditions.find(|condition| condition.type_ == kind)?;
    Some((found.status == "True", found.reason.as_str()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn pool(status: Value) -> Pool {
        let pool = json!({
            "apiVersion": "instar.dev/v1alpha1", "kind": "Pool", "metadata": {"name": "machine-1", "generation": 2},
            "spec": {"nodeSelector": {}, "image": "r/i:v2"}, "status": status,
        });
        serde_json::from_value(pool).unwrap()
    }

    /// A status of the present generation and image.
    fn status(phase: &str, reason: [&str; 2], rest: &Value) -> Value {
        let [kind, reason] = reason;
        let holds = if reason == "AllNodes" {
            "True"
        } else {
            "False"
        };
        let condition = json!({
            "type": kind, "status": holds, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let mut status = json!({
            "observedGeneration": 2, "phase": phase, "message": "m", "nodes": 1, "updated": 0, "failed": 0,
            "conditions": [condition], "rollout": {"number": 1, "image": "r/i:v2", "command": null, "record": {}},
        });
        let rest = rest.as_object().unwrap().clone();
        status.as_object_mut().unwrap().extend(rest);
        status
    }

    fn wait(why: &str) -> Step {
        Step::Wait(why.to_owned())
    }

    fn fail(why: &str) -> Step {
        Step::Fail(why.to_owned())
    }

    fn step(status: Value) -> Step {
        let pool = pool(status);
        next(Facts {
            image: "r/i:v2",
            pool: Some(&pool),
        })
    }

    const UPDATED: [&str; 2] = ["Updated", "AllNodes"];

    #[test]
    fn what_is_shown_of_another_rollout_does_not_count() {
        let not_yet = wait("the operator has not taken up the pool yet");
        let other = json!({"rollout": {"image": "r/i:v1", "number": 1, "record": {}}});
        let old = json!({"observedGeneration": 1});
        assert_eq!(step(Value::Null), not_yet);
        assert_eq!(step(status("Done", UPDATED, &old)), not_yet);
        assert_eq!(step(status("Done", UPDATED, &other)), not_yet);
        assert_eq!(
            step(status("Halted", ["Updated", "Halted"], &other)),
            not_yet
        );
        let none = json!({"rollout": null});
        assert_eq!(
            step(status("Waiting", ["Valid", "Valid"], &none)),
            wait("m")
        );
    }

    #[test]
    fn a_call_does_what_the_pool_shows() {
        for (phase, condition, rest, expected) in [
            ("Rolling", ["Updated", "Rolling"], json!({}), wait("m")),
            ("Paused", ["Updated", "Paused"], json!({}), wait("m")),
            ("GoingBack", ["Updated", "GoingBack"], json!({}), wait("m")),
            (
                "Done",
                ["Updated", "Done"],
                json!({}),
                wait("m: it is held"),
            ),
            ("Done", UPDATED, json!({"updated": 1}), Step::Finish),
            (
                "Done",
                UPDATED,
                json!({"nodes": 2}),
                fail("the pool has 2 nodes, not one"),
            ),
            (
                "Done",
                ["Failed", "NodeFailed"],
                json!({"failed": 1}),
                fail("m"),
            ),
            (
                "Halted",
                ["Failed", "NodeFailed"],
                json!({"failed": 1}),
                fail("m"),
            ),
            ("WentBack", ["Updated", "WentBack"], json!({}), fail("m")),
            ("Aborted", ["Updated", "Aborted"], json!({}), fail("m")),
            ("Invalid", ["Valid", "NodeConflict"], json!({}), wait("m")),
            ("Invalid", ["Valid", "ImageRefused"], json!({}), fail("m")),
        ] {
            let status = status(phase, condition, &rest);
            assert_eq!(step(status), expected, "{phase} {rest}");
        }
    }

    #[test]
    fn a_pool_is_made_renamed_or_waited_for() {
        assert_eq!(
            next(Facts {
                image: "r/i:v2",
                pool: None
            }),
            Step::Make
        );
        let mut pool = pool(Value::Null);
        assert_eq!(
            next(Facts {
                image: "r/i:v3",
                pool: Some(&pool)
            }),
            Step::Rename
        );
        pool.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let step = next(Facts {
            image: "r/i:v3",
            pool: Some(&pool),
        });
        assert_eq!(step, wait("the pool of the last update is being deleted"));
    }

    #[test]
    fn a_machine_is_protected_for_as_long_as_it_changes() {
        for (step, usually, never_replaced) in [
            (Step::Make, true, true),
            (Step::Rename, true, true),
            (wait(""), true, true),
            (Step::Finish, false, false),
            (fail(""), false, true),
        ] {
            assert_eq!(step.protects(false), usually, "{step:?}");
            assert_eq!(step.protects(true), never_replaced, "{step:?}");
        }
    }
}
