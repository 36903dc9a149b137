//! Requests and answers as Cluster API's managers write and read them (`hooks.runtime.cluster.x-k8s.io/v1alpha1`).
//!
//! Requests have whole objects of kinds that nobody knows here: what is not named below is not looked at. An answer is read by its fields alone,
//! and always comes with the code 200: that the hook has failed is a field, too.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

/// The version of the hooks.
pub(super) const VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
/// The time that a handler has by our own word, in seconds. Cluster API allows 30.
const TIMEOUT: u32 = 20;

/// A hook, and what its handler is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Discovery,
    CanUpdateMachine,
    CanUpdateMachineSet,
    UpdateMachine,
}

impl Hook {
    /// The hooks that Discovery names, each with the name of its handler.
    const HANDLED: [(Self, &str); 3] = [
        (Self::CanUpdateMachine, "can-update-machine"),
        (Self::CanUpdateMachineSet, "can-update-machine-set"),
        (Self::UpdateMachine, "update-machine"),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Discovery => "Discovery",
            Self::CanUpdateMachine => "CanUpdateMachine",
            Self::CanUpdateMachineSet => "CanUpdateMachineSet",
            Self::UpdateMachine => "UpdateMachine",
        }
    }

    /// The hook of a path without its query, under any prefix; none if it is no hook's.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let (_, rest) = path.rsplit_once(&format!("/{VERSION}/"))?;
        if rest == "discovery" {
            return Some(Self::Discovery);
        }
        let mut handled = Self::HANDLED.into_iter();
        let found = handled.find(|(hook, handler)| {
            rest.split_once('/') == Some((&hook.name().to_lowercase(), handler))
        });
        found.map(|(hook, _)| hook)
    }

    /// An answer of this hook.
    pub(super) fn answer(self, answer: Answer) -> Value {
        let (status, message, rest) = match answer {
            Answer::Failure(message) => ("Failure", message, json!({})),
            Answer::Success(message, rest) => ("Success", message, rest),
        };
        let mut value = json!({
            "apiVersion": VERSION, "kind": format!("{}Response", self.name()), "status": status, "message": message,
        });
        if let (Some(value), Value::Object(rest)) = (value.as_object_mut(), rest) {
            value.extend(rest);
        }
        value
    }
}

/// The answer to the call of a hook.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The hook could not do its work; the manager calls it again later.
    Failure(String),
    /// It did: a message, and the fields of this hook.
    Success(String, Value),
}

impl Answer {
    /// The handlers of this server.
    pub(super) fn handlers() -> Self {
        let handlers = Hook::HANDLED.map(|(hook, name)| {
            json!({
                "name": name, "requestHook": {"apiVersion": VERSION, "hook": hook.name()},
                "timeoutSeconds": TIMEOUT, "failurePolicy": "Fail",
            })
        });
        Self::Success(String::new(), json!({ "handlers": handlers }))
    }

    /// No patch: the machine cannot become what it is to be.
    pub(super) fn no(why: String) -> Self {
        Self::Success(why, json!({}))
    }

    /// The update goes on; the manager calls again. Without these seconds it would take the update for finished.
    pub(super) fn later(message: String, seconds: u32) -> Self {
        let seconds = seconds.max(1);
        Self::Success(message, json!({ "retryAfterSeconds": seconds }))
    }

    /// The update is finished.
    pub(super) fn finished(message: String) -> Self {
        Self::Success(message, json!({ "retryAfterSeconds": 0 }))
    }
}

/// A merge patch of an object: the manager's type has bytes there, so it is base64.
pub(super) fn merge_patch(patch: &Value) -> Value {
    json!({ "patchType": "JSONMergePatch", "patch": STANDARD.encode(patch.to_string()) })
}

/// CanUpdateMachine and CanUpdateMachineSet.
#[derive(Debug, Deserialize)]
pub(super) struct CanUpdate {
    #[serde(default)]
    pub(super) settings: BTreeMap<String, String>,
    pub(super) current: Objects,
    pub(super) desired: Objects,
}

/// A machine, or a set of them, with its infrastructure and bootstrap objects; null where there is none.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Objects {
    #[serde(alias = "machineSet")]
    pub(super) machine: Value,
    #[serde(alias = "infrastructureMachineTemplate")]
    pub(super) infrastructure_machine: Value,
    #[serde(default, alias = "bootstrapConfigTemplate")]
    pub(super) bootstrap_config: Value,
}

/// UpdateMachine. The objects say which machine it is, and no more: what it is to become is read from the cluster, whose API server knows who may
/// change it.
#[derive(Debug, Deserialize)]
pub(super) struct UpdateMachine {
    #[serde(default)]
    pub(super) settings: BTreeMap<String, String>,
    pub(super) desired: Desired,
}

/// The machine of an update.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Desired {
    pub(super) machine: Named,
    pub(super) infrastructure_machine: Typed,
    /// None where the Machine has none.
    #[serde(default)]
    pub(super) bootstrap_config: Option<Typed>,
}

/// An object by its name.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) metadata: Metadata,
}

/// The name of an object.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: String,
}

/// An object by its type.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Typed {
    pub(super) api_version: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn hooks_are_found_by_their_paths() {
        let at = |rest: &str| format!("/hooks.runtime.cluster.x-k8s.io/v1alpha1/{rest}");
        for (path, expected) in [
            (at("discovery"), Some(Hook::Discovery)),
            (format!("/prefix{}", at("discovery")), Some(Hook::Discovery)),
            (
                at("updatemachine/update-machine"),
                Some(Hook::UpdateMachine),
            ),
            (
                at("canupdatemachine/can-update-machine"),
                Some(Hook::CanUpdateMachine),
            ),
            (
                at("canupdatemachineset/can-update-machine-set"),
                Some(Hook::CanUpdateMachineSet),
            ),
            (at("updatemachine/another"), None),
            (at("beforeclustercreate/x"), None),
            ("/healthz".to_owned(), None),
        ] {
            assert_eq!(Hook::of_path(&path), expected, "{path}");
        }
    }

    #[test]
    fn discovery_names_the_three_handlers() {
        let answer = Hook::Discovery.answer(Answer::handlers());
        assert_eq!(answer["status"], "Success");
        assert_eq!(answer["kind"], "DiscoveryResponse");
        let handlers = answer["handlers"].as_array().unwrap();
        let hooks: Vec<&Value> = handlers
            .iter()
            .map(|it| &it["requestHook"]["hook"])
            .collect();
        assert_eq!(
            hooks,
            ["CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"]
        );
        assert!(
            handlers
                .iter()
                .all(|it| it["timeoutSeconds"].as_u64() <= Some(30))
        );
    }

    #[test]
    fn only_a_finished_update_has_no_seconds() {
        let later = Hook::UpdateMachine.answer(Answer::later("on its way".to_owned(), 0));
        assert_eq!(
            (&later["retryAfterSeconds"], &later["status"]),
            (&json!(1), &json!("Success"))
        );
        let finished = Hook::UpdateMachine.answer(Answer::finished(String::new()));
        assert_eq!(finished["retryAfterSeconds"], 0);
    }

    #[test]
    fn a_patch_is_base64() {
        let patch = merge_patch(&json!({"spec": {"a": 1}}));
        assert_eq!(patch["patch"], "eyJzcGVjIjp7ImEiOjF9fQ==");
    }

    #[test]
    fn requests_may_have_more_than_is_known() {
        let objects = json!({
            "machineSet": {"spec": {}, "new": 1}, "infrastructureMachineTemplate": {"kind": "X"}, "bootstrapConfigTemplate": null,
        });
        let request = json!({"kind": "CanUpdateMachineSetRequest", "current": objects, "desired": objects, "future": [1]});
        let read: CanUpdate = serde_json::from_value(request).unwrap();
        assert_eq!(read.desired.infrastructure_machine["kind"], "X");
        let request = json!({"settings": {"a": "b"}, "desired": {
            "machine": {"metadata": {"name": "m", "namespace": "n", "labels": {}}, "spec": {}},
            "infrastructureMachine": {"apiVersion": "i/v1", "kind": "I", "spec": {}},
        }});
        let read: UpdateMachine = serde_json::from_value(request).unwrap();
        assert_eq!(read.desired.machine.metadata.name, "m");
        assert!(read.desired.bootstrap_config.is_none());
    }
}
