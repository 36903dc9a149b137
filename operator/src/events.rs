//! Events of pools and nodes, as `kubectl describe` shows them. They are for people: an event that cannot be written is a line of the log.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client};

use crate::api::Kind;

/// Events of objects without a namespace are in this one, by the rules of the API server.
const NAMESPACE: &str = "default";
const CONTROLLER: &str = "instar.dev/operator";
/// The longest note that the API server takes, in bytes.
const NOTE: usize = 1024;

/// What a person has to know who cordons a node that is cordoned already: the API server is sent nothing then, and the operator cannot know.
const CORDON: &str =
    "its cordon is taken back at the end: to keep it, remove the annotation instar.dev/cordoned-by";

/// An event before it has an object and a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventText {
    is_warning: bool,
    reason: String,
    note: String,
}

/// The event of a node whose part in a rollout of this kind has got into another phase; none if there is nothing to tell. `to`: the version, or the
/// fingerprint of the config.
pub(crate) fn of_node(kind: Kind, phase: &str, to: &str, why: &str) -> Option<EventText> {
    let is_warning = matches!(phase, "Failed" | "GoingBack" | "Stuck");
    let (reason, note) = match (kind, phase) {
        (Kind::Version, "Upgrading") => ("UpgradeBegun", format!("upgrades to {to}; {CORDON}")),
        (Kind::Version, "Updated") => ("Upgraded", format!("runs {to}")),
        (Kind::Version, "Failed") => ("UpgradeFailed", format!("{to}: {why}")),
        (Kind::Version, "GoingBack") => ("UpgradeTakenBack", format!("goes back from {to}")),
        (Kind::Version, "WentBack") => ("WentBack", "runs the previous version".to_owned()),
        (Kind::Version, "Stuck") => ("UpgradeStuck", format!("{to}: {why}")),
        (Kind::Config, "Upgrading") => ("ConfigBegun", format!("tries {to}; {CORDON}")),
        (Kind::Config, "Updated") => ("Configured", format!("has {to}")),
        (Kind::Config, "Failed") => ("ConfigFailed", format!("{to}: {why}")),
        (Kind::Config, "GoingBack") => ("ConfigTakenBack", format!("goes back from {to}")),
        (Kind::Config, "WentBack") => ("WentBack", "has the previous config".to_owned()),
        (Kind::Config, "Stuck") => ("ConfigStuck", format!("{to}: {why}")),
        _ => return None,
    };
    let reason = reason.to_owned();
    Some(EventText {
        is_warning,
        reason,
        note,
    })
}

/// The event of a pool that has got into another phase; none if there is nothing to tell.
pub(crate) fn of_pool(phase: &str, message: &str) -> Option<EventText> {
    let is_warning = match phase {
        "Rolling" | "Paused" | "Done" | "Aborted" => false,
        "Halted" | "GoingBack" | "WentBack" | "Invalid" => true,
        _ => return None,
    };
    let (reason, note) = (format!("Rollout{phase}"), message.to_owned());
    Some(EventText {
        is_warning,
        reason,
        note,
    })
}

/// The event of a pool whose command of a person, by the text of its annotation, makes no sense now.
pub(crate) fn of_refused_command(text: &str, why: &str) -> EventText {
    // The reason first: the text may be of any length.
    EventText {
        is_warning: true,
        reason: "CommandRefused".to_owned(),
        note: format!("{why}: {text}"),
    }
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
    pub(crate) async fn tell(&self, object: ObjectReference, told: EventText) {
        let api: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let name = object.name.clone().unwrap_or_default();
        let event = event(&self.identity, object, told);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            eprintln!("an event of {name} cannot be written: {error}");
        }
    }
}

fn event(identity: &str, object: ObjectReference, told: EventText) -> Event {
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
        let of = |kind, phase| of_node(kind, phase, "v2", "its gate did not open");
        let failed = of(Kind::Version, "Failed").unwrap();
        assert!(failed.is_warning && failed.note == "v2: its gate did not open");
        for (phase, version, config) in [
            ("Upgrading", "UpgradeBegun", "ConfigBegun"),
            ("Updated", "Upgraded", "Configured"),
            ("Failed", "UpgradeFailed", "ConfigFailed"),
            ("Stuck", "UpgradeStuck", "ConfigStuck"),
        ] {
            let reasons = [Kind::Version, Kind::Config].map(|kind| of(kind, phase).unwrap());
            let [one, other] = &reasons;
            assert_eq!([one.reason.as_str(), &other.reason], [version, config]);
            assert_eq!(one.is_warning, other.is_warning);
        }
        assert!(!of(Kind::Config, "Upgrading").unwrap().is_warning);
        let begun = of(Kind::Version, "Upgrading").unwrap().note;
        assert!(begun.starts_with("upgrades to v2; ") && begun.contains(crate::api::CORDONED_BY));
        assert_eq!(of(Kind::Config, "Waiting"), None);
        assert!(of_pool("Halted", "n1: it burns").unwrap().is_warning);
        assert_eq!(of_pool("Waiting", ""), None);
    }

    #[test]
    fn a_refused_command_is_an_event_with_the_reason() {
        let told = of_refused_command("resume", "the rollout has ended");
        assert!(told.is_warning);
        assert_eq!(told.reason, "CommandRefused");
        assert_eq!(told.note, "the rollout has ended: resume");
    }

    #[test]
    fn an_event_keeps_to_the_rules_of_the_api_server() {
        let node = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some("n1".to_owned()),
            ..ObjectReference::default()
        };
        let told = of_node(Kind::Version, "Failed", "v2", &"ü".repeat(2000)).unwrap();
        let event = event("operator-1", node, told);
        assert!(event.note.unwrap().len() <= NOTE);
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        // A dash may stand at the end of it, and no dot.
        assert_eq!(event.metadata.generate_name.as_deref(), Some("n1-"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert!(event.event_time.is_some());
    }
}
