//! The status and the events of a pool.

use std::collections::BTreeSet;

use anyhow::ensure;
use instar_tests::{ControlPlane, Outcome};
use serde_json::Value;

use super::eventually;

/// A pool as the cluster shows it.
#[derive(Debug)]
pub(super) struct Told(Value);

impl Told {
    pub(super) fn of(plane: &ControlPlane, pool: &str) -> anyhow::Result<Self> {
        Ok(Self(plane.kubectl().get(&["pool", pool])?))
    }

    /// A condition as `status/reason`.
    pub(super) fn condition(&self, kind: &str) -> String {
        let conditions = self.0["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let condition = conditions.find(|condition| condition["type"] == kind);
        let part = |name: &str| {
            let part = condition.and_then(|condition| condition[name].as_str());
            part.unwrap_or_default().to_owned()
        };
        format!("{}/{}", part("status"), part("reason"))
    }
}

/// A field of an object's status; empty if it has none.
pub(crate) fn column(object: &Value, name: &str) -> String {
    let column = object["status"][name].as_str();
    column.unwrap_or_default().to_owned()
}

/// Waits until a pool is in a phase, and says this of its present generation.
pub(crate) async fn is_told(plane: &ControlPlane, pool: &str, phase: &str, words: &str) -> Outcome {
    eventually(&format!("{pool} is {phase}: {words}"), || {
        let Told(shown) = Told::of(plane, pool)?;
        let status = &shown["status"];
        let is_present = status["observedGeneration"] == shown["metadata"]["generation"];
        let is_meant =
            column(&shown, "phase") == phase && column(&shown, "message").contains(words);
        ensure!(is_present && is_meant, "{:#}", status);
        println!(
            "{pool}: {}: {}",
            column(&shown, "phase"),
            column(&shown, "message")
        );
        Ok(())
    })
    .await
}

/// Waits until an object (its kind and name) has an event with this reason and these words.
pub(super) async fn has_event(
    plane: &ControlPlane,
    object: (&str, &str),
    reason: &str,
    words: &str,
) -> Outcome {
    eventually(&format!("{object:?} has {reason}: {words}"), || {
        let all = ["events.events.k8s.io", "-n", "default"];
        let all = plane.kubectl().get(&all)?;
        let events = all["items"].as_array().into_iter().flatten();
        let mut meant = events.filter(|event| is_about(event, object, reason, words));
        ensure!(meant.next().is_some(), "{:#}", all["items"]);
        Ok(())
    })
    .await
}

fn is_about(event: &Value, (kind, name): (&str, &str), reason: &str, words: &str) -> bool {
    let (object, note) = (&event["regarding"], event["note"].as_str());
    let is_of_it = object["kind"] == kind && object["name"] == name;
    is_of_it && event["reason"] == reason && note.unwrap_or_default().contains(words)
}

/// The rights of roles, as in `list pods` and `update instar.dev/pools/status`.
pub(crate) fn granted(roles: &[Value]) -> BTreeSet<String> {
    let rules = roles.iter().flat_map(|role| role["rules"].as_array());
    rules.flatten().flat_map(verbs).collect()
}

fn verbs(rule: &Value) -> Vec<String> {
    let first = |name: &str| rule[name][0].as_str().unwrap_or_default();
    let resource = format!("{}/{}", first("apiGroups"), first("resources"));
    let resource = resource.trim_start_matches('/');
    let verbs = rule["verbs"].as_array().into_iter().flatten();
    let verbs = verbs.filter_map(Value::as_str);
    verbs.map(|verb| format!("{verb} {resource}")).collect()
}
