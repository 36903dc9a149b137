//! The update of one machine: what a call of UpdateMachine does next. Pure.
//!
//! ```text
//!                 no pool                the pool names something else
//!                    │ Make                   │ Change
//!                    ▼                        ▼
//!  ┌─────────── the pool of the machine's node, driven by the operator of its cluster ───────────┐
//!  │ Wait: not taken up, rolling, paused, held, in conflict with another pool, another kubelet   │
//!  │ Finish: every node of it is as wanted ────► the pool is deleted, the mark removed, answer 0 │
//!  │ Fail: halted, gone back, aborted, refused ──► the pool stays, for people; answer Failure    │
//!  └─────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A call after Finish begins again: the operator finds that the node is as wanted, and nothing happens to it.
//!
//! A pool knows the config of its node, and not whether kubelet runs by it: another extension is on trial after its config is in force, and may go
//! back by itself. So an update of Kubernetes ends only by the version that kubelet tells.

use std::time::Duration;

use jiff::Timestamp;

use super::kubernetes::{check_step, kubelet_version};
use super::wanted::Wanted;
use crate::api::{Pool, PoolStatus, Rollout};

/// The facts when a call comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// The wanted state of the machine.
    pub(super) wanted: &'a Wanted,
    /// The version of Kubernetes that the kubelet of its node tells.
    pub(super) kubelet: &'a str,
    /// The pool of its node.
    pub(super) pool: Option<&'a Pool>,
    /// The time that kubelet has to tell the wanted version, once the pool is done.
    pub(super) limit: Duration,
    pub(super) now: Timestamp,
}

/// The step that the call takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Make the pool.
    Make,
    /// Have the pool name what is wanted.
    Change,
    /// Nothing but wait; why.
    Wait(String),
    /// The machine is as wanted.
    Finish,
    /// It is not, and will not be by itself; why.
    Fail(String),
}

impl Step {
    /// Whether the machine must not be remediated after this step. One that failed may be, unless it is never to be replaced: an operator that
    /// gave up does not make a dead node well.
    pub(super) fn protects(&self, never_replace: bool) -> bool {
        match self {
            Self::Make | Self::Change | Self::Wait(_) => true,
            Self::Finish => false,
            Self::Fail(_) => never_replace,
        }
    }
}

/// Decides.
pub(super) fn next(facts: Facts<'_>) -> Step {
    // Whatever Cluster API has asked before: a node whose Kubernetes is newer is not taken back.
    if let Some(version) = &facts.wanted.kubernetes {
        let may = kubelet_version(facts.kubelet).and_then(|own| check_step(&own, version));
        if let Err(why) = may {
            return Step::Fail(format!("its kubelet: {why}"));
        }
    }
    let Some(pool) = facts.pool else {
        return Step::Make;
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return Step::Wait("the pool of the last update is being deleted".to_owned());
    }
    if !facts.wanted.is_of(&pool.spec) {
        return Step::Change;
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
    let shown = status.rollout.as_ref();
    if !shown.is_some_and(|rollout| is_wanted(rollout, facts.wanted)) {
        // What is shown is the rollout before this one, if there was one.
        return match (shown, message.is_empty()) {
            (None, false) => Step::Wait(message),
            _ => not_taken_up(),
        };
    }
    match ended(status, message) {
        Step::Finish => proved(facts, status),
        step => step,
    }
}

/// Whether a rollout brings something of what is wanted: the image, or the patches after it.
fn is_wanted(rollout: &Rollout, wanted: &Wanted) -> bool {
    let patches = &rollout.config_patches;
    rollout.image == wanted.image && (patches.is_empty() || *patches == wanted.config_patches)
}

/// The same for a rollout of what is wanted.
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

/// The same once the pool is done: patches have to be rolled out, and kubelet has to tell the version.
fn proved(facts: Facts<'_>, status: &PoolStatus) -> Step {
    let patches = &facts.wanted.config_patches;
    let mut rollouts = status.rollout.iter().chain(&status.set_aside);
    if !patches.is_empty() && !rollouts.any(|rollout| rollout.config_patches == *patches) {
        let why = "the operator has done the version alone, as one that knows no configPatches does: it has to be a newer one";
        return Step::Fail(why.to_owned());
    }
    let Some(version) = &facts.wanted.kubernetes else {
        return Step::Finish;
    };
    if kubelet_version(facts.kubelet).as_ref() == Ok(version) {
        return Step::Finish;
    }
    let waits = format!("kubelet tells {}, and not {version} yet", facts.kubelet);
    let mut conditions = status.conditions.iter();
    let updated = conditions.find(|condition| condition.type_ == "Updated");
    let since = updated.map(|condition| facts.now.duration_since(condition.last_transition_time.0));
    // By a clock that is behind, no time has passed.
    let waited = since.and_then(|since| Duration::try_from(since).ok());
    match waited.is_some_and(|waited| waited > facts.limit) {
        false => Step::Wait(waits),
        true => Step::Fail(format!(
            "{waits}, although its config is in force: `instarctl get kubernetes` on the node says whether the extension went back, and why"
        )),
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
    #![allow(clippy::panic, clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn wanted(image: &str, kubernetes: Option<&str>) -> Wanted {
        Wanted {
            image: image.to_owned(),
            kubernetes: kubernetes.map(|version| version.parse().unwrap()),
            config_patches: Vec::new(),
        }
    }

    /// Decides for a node whose kubelet tells this version, some minutes after its pool was done.
    fn decided(wanted: &Wanted, kubelet: &str, pool: Option<&Pool>, minutes: i64) -> Step {
        let done: Timestamp = DONE.parse().unwrap();
        next(Facts {
            wanted,
            kubelet,
            pool,
            limit: Duration::from_secs(1800),
            now: done + jiff::SignedDuration::from_mins(minutes),
        })
    }

    const DONE: &str = "2026-01-01T00:00:00Z";

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
            "type": kind, "status": holds, "reason": reason, "message": "", "lastTransitionTime": DONE,
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
        decided(&wanted("r/i:v2", None), "", Some(&pool(status)), 1)
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
        let patches = json!({"rollout": {"image": "r/i:v2", "number": 1, "configPatches": ["a: b"], "record": {}}});
        let halted = status("Halted", ["Updated", "Halted"], &patches);
        assert_eq!(step(halted.clone()), not_yet);
        let wanted = Wanted {
            config_patches: vec!["a: b".to_owned()],
            ..wanted("r/i:v2", None)
        };
        let mut pool = pool(halted);
        pool.spec.config_patches = wanted.config_patches.clone();
        assert_eq!(decided(&wanted, "", Some(&pool), 1), fail("m"));
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
            // Between the version and its config.
            (
                "Waiting",
                ["Updated", "Waiting"],
                json!({"updated": 1}),
                wait("m"),
            ),
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
    fn a_pool_is_made_changed_or_waited_for() {
        let [second, third] = ["r/i:v2", "r/i:v3"].map(|image| wanted(image, None));
        assert_eq!(decided(&second, "", None, 1), Step::Make);
        let mut pool = pool(Value::Null);
        assert_eq!(decided(&third, "", Some(&pool), 1), Step::Change);
        let patched = Wanted {
            config_patches: vec!["a: b".to_owned()],
            ..second
        };
        assert_eq!(decided(&patched, "", Some(&pool), 1), Step::Change);
        pool.metadata.deletion_timestamp = serde_json::from_value(json!(DONE)).unwrap();
        let step = decided(&third, "", Some(&pool), 1);
        assert_eq!(step, wait("the pool of the last update is being deleted"));
    }

    #[test]
    fn patches_are_in_force_once_a_rollout_has_brought_them() {
        let wanted = Wanted {
            config_patches: vec!["a: b".to_owned()],
            ..wanted("r/i:v2", None)
        };
        let rollout = |patches: Value| json!({"image": "r/i:v2", "number": 1, "configPatches": patches, "record": {}});
        let step = |rest: Value| {
            let mut pool = pool(status("Done", UPDATED, &rest));
            pool.spec.config_patches = wanted.config_patches.clone();
            decided(&wanted, "", Some(&pool), 1)
        };
        let (version, config) = (rollout(json!([])), rollout(json!(["a: b"])));
        assert_eq!(step(json!({ "rollout": config })), Step::Finish);
        let before = json!({"rollout": version, "setAside": config});
        assert_eq!(step(before), Step::Finish);
        for rest in [
            json!({ "rollout": version }),
            json!({"rollout": version, "setAside": rollout(json!(["c: d"]))}),
        ] {
            let Step::Fail(why) = step(rest) else {
                panic!("it is finished without the patches");
            };
            assert!(why.contains("newer one"), "{why}");
        }
    }

    #[test]
    fn kubernetes_of_a_node_is_never_taken_back() {
        let wanted = wanted("r/i:v2", Some("v1.36.3"));
        let done = pool(status("Done", UPDATED, &json!({"updated": 1})));
        for pool in [None, Some(&done)] {
            for (kubelet, words) in [
                ("v1.37.0", "does not go back from v1.37.0 to v1.36.3"),
                ("v1.34.0", "next minor version at most"),
                ("", "no version of Kubernetes"),
            ] {
                let Step::Fail(why) = decided(&wanted, kubelet, pool, 1) else {
                    panic!("{kubelet}");
                };
                assert!(why.contains(words), "{why}");
            }
        }
        assert_eq!(decided(&wanted, "v1.35.0", None, 1), Step::Make);
    }

    #[test]
    fn an_update_of_kubernetes_ends_by_the_word_of_kubelet() {
        let wanted = wanted("r/i:v2", Some("v1.36.3"));
        let done = pool(status("Done", UPDATED, &json!({"updated": 1})));
        let step = |kubelet, minutes| decided(&wanted, kubelet, Some(&done), minutes);
        assert_eq!(step("v1.36.3", 1), Step::Finish);
        assert_eq!(step("v1.36.3+site", 1000), Step::Finish);
        for minutes in [-10, 0, 29] {
            assert_eq!(
                step("v1.35.4", minutes),
                wait("kubelet tells v1.35.4, and not v1.36.3 yet")
            );
        }
        let Step::Fail(why) = step("v1.35.4", 31) else {
            panic!("it waits for ever");
        };
        assert!(why.contains("instarctl get kubernetes"), "{why}");
        let rolling = pool(status("Rolling", ["Updated", "Rolling"], &json!({})));
        assert_eq!(decided(&wanted, "v1.36.3", Some(&rolling), 1), wait("m"));
    }

    #[test]
    fn a_machine_is_protected_for_as_long_as_it_changes() {
        for (step, usually, never_replaced) in [
            (Step::Make, true, true),
            (Step::Change, true, true),
            (wait(""), true, true),
            (Step::Finish, false, false),
            (fail(""), false, true),
        ] {
            assert_eq!(step.protects(false), usually, "{step:?}");
            assert_eq!(step.protects(true), never_replaced, "{step:?}");
        }
    }
}
