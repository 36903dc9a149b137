//! Events of pools and nodes, as `kubectl describe` shows them. They are for people: an event that cannot be written is a line of the log.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client};

/// Events of objects without a namespace are in this one, by the rules of the API server.
const NAMESPACE: &str = "default";
const CONTROLLER: &str = "instar.dev/operator";
/// The longest note that the API server takes, in bytes.
const NOTE: usize = 1024;

/// An event before it has an object and a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    is_warning: bool,
    reason: String,
    note: String,
}

/// What there is to tell of a node whose part in a rollout of this version has got into another phase.
pub(crate) fn of_node(phase: &str, to: &str, why: &str) -> Option<Told> {
    let (is_warning, reason, note) = match phase {
        "Upgrading" => (false, "UpgradeBegun", format!("upgrades to {to}")),
        "Updated" => (false, "Upgraded", format!("runs {to}")),
        "Failed" => (true, "UpgradeFailed", format!("{to}: {why}")),
        "GoingBack" => (true, "UpgradeTakenBack", format!("goes back from {to}")),
        "WentBack" => (false, "WentBack", "runs the version of before".to_owned()),
        "Stuck" => (true, "UpgradeStuck", format!("{to}: {why}")),
        _ => return None,
    };
    let reason = reason.to_owned();
    Some(Told {
        is_warning,
        reason,
        note,
    })
}

/// What there is to tell of a pool that has got into another phase.
pub(crate) fn of_pool(phase: &str, message: &str) -> Option<Told> {
    let is_warning = match phase {
        "Rolling" | "Paused" | "Done" | "Aborted" => false,
        "Halted" | "GoingBack" | "WentBack" | "Invalid" => true,
        _ => return None,
    };
    let (reason, note) = (format!("Rollout{phase}"), message.to_owned());
    Some(Told {
        is_warning,
        reason,
        note,
    })
}

/// Writes events.
#[derive(Clone)]
pub(crate) struct Recorder {
    client: Client,
    /// The process, for people who look for its log.
    identity: String,
}

impl Recorder {
    pub(crate) fn new(client: Client, identity: &str) -> Self {
        let identity = identity.to_owned();
        Self { client, identity }
    }

    /// Writes an event of an object.
    pub(crate) async fn tell(&self, object: ObjectReference, told: Told) {
        let api: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let name = object.name.clone().unwrap_or_default();
        let event = event(&self.identity, object, told);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            eprintln!("an event of {name} cannot be written: {error}");
        }
    }
}

fn event(identity: &str, object: ObjectReference, told: Told) -> Event {
    let kind = if told.is_warning { "Warning" } else { "Normal" };
    let mut note = told.note;
    note.truncate(note.floor_char_boundary(NOTE));
    Event {
        metadata: ObjectMeta {
            generate_name: object.name.as_ref().map(|name| format!("{name}-")),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(jiff::Timestamp::now())),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(identity.chars().take(128).collect()),
        action: Some("Roll".to_owned()),
        reason: Some(told.reason),
        note: Some(note),
        type_: Some(kind.to_owned()),
        regarding: Some(object),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_people_look_for_is_an_event() {
        let failed = of_node("Failed", "v2", "its gate did not open").unwrap();
        assert!(failed.is_warning && failed.note == "v2: its gate did not open");
        assert!(!of_node("Upgrading", "v2", "").unwrap().is_warning);
        assert_eq!(of_node("Waiting", "v2", ""), None);
        assert!(of_pool("Halted", "n1: it burns").unwrap().is_warning);
        assert_eq!(of_pool("Waiting", ""), None);
    }

    #[test]
    fn an_event_keeps_to_the_rules_of_the_api_server() {
        let node = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some("n1".to_owned()),
            ..ObjectReference::default()
        };
        let told = of_node("Failed", "v2", &"ü".repeat(2000)).unwrap();
        let event = event("operator-1", node, told);
        assert!(event.note.unwrap().len() <= NOTE);
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        // A dash may stand at the end of it, and no dot.
        assert_eq!(event.metadata.generate_name.as_deref(), Some("n1-"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert!(event.event_time.is_some());
    }
}
