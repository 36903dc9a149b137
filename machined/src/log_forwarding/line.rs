//! The lines that receivers get: JSON with Talos's fields, and the tags of the destination.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::api::{KernelRecord, event_in_words};
use crate::config_source::Secrets;
use crate::services::MACHINED;
use crate::store::event_log::Event;

/// A line before the tags of its destination.
pub(super) type Fields = Map<String, Value>;

/// A line of a service's log, which was read at this time.
pub(super) fn of_service(service: &str, line: &[u8], at: jiff::Timestamp) -> Fields {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\n', '\r']);
    // machined's own lines begin with their level.
    let (level, text) = match text.split_once(' ') {
        Some(("ERROR", rest)) if service == MACHINED => ("error", rest),
        Some(("WARN", rest)) if service == MACHINED => ("warn", rest),
        Some(("INFO", rest)) if service == MACHINED => ("info", rest),
        _ => ("info", text),
    };
    fields(service, level, text, at)
}

/// A record of the kernel's log. The config's URL is hidden: it may hold a password.
pub(super) fn of_kernel(record: KernelRecord) -> Fields {
    let level = match record.priority {
        "emerg" | "alert" | "crit" | "err" => "error",
        "warning" => "warn",
        "debug" => "debug",
        _ => "info",
    };
    let text = Secrets::Hidden.shown(record.message);
    let mut fields = fields("kernel", level, &text, record.at);
    fields.insert("facility".to_owned(), record.facility.into());
    fields.insert("priority".to_owned(), record.priority.into());
    fields.insert("seq".to_owned(), record.number.into());
    fields
}

/// An event.
pub(super) fn of_event(event: &Event) -> Fields {
    let at = jiff::Timestamp::try_from(event.at).unwrap_or_default();
    let mut fields = fields("events", "info", &event_in_words(&event.payload), at);
    fields.insert("event".to_owned(), event.payload.name().into());
    fields.insert("id".to_owned(), event.id.as_str().into());
    if !event.actor.0.is_empty() {
        fields.insert("actor".to_owned(), event.actor.0.as_str().into());
    }
    fields
}

fn fields(service: &str, level: &str, text: &str, at: jiff::Timestamp) -> Fields {
    let fields = [
        ("msg", text.to_owned()),
        ("talos-level", level.to_owned()),
        ("talos-service", service.to_owned()),
        ("talos-time", at.to_string()),
    ];
    let fields = fields.into_iter();
    fields
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

/// The line with these tags, as it is sent. A tag hides no field.
pub(super) fn encoded(fields: &Fields, tags: &BTreeMap<String, String>) -> Vec<u8> {
    let mut all = fields.clone();
    for (name, value) in tags {
        all.entry(name.as_str())
            .or_insert_with(|| value.as_str().into());
    }
    let mut line = Value::Object(all).to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at() -> jiff::Timestamp {
        "2026-11-26T20:00:00Z".parse().unwrap()
    }

    fn text(fields: &Fields, tags: &[(&str, &str)]) -> String {
        let tags = tags.iter();
        let tags = tags.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        String::from_utf8(encoded(fields, &tags.collect())).unwrap()
    }

    #[test]
    fn lines_have_the_fields_of_talos_and_the_tags() {
        let line = of_service("web", b"said \"x\"\n", at());
        assert_eq!(
            text(&line, &[("site", "lab")]),
            "{\"msg\":\"said \\\"x\\\"\",\"site\":\"lab\",\"talos-level\":\"info\",\"talos-service\":\"web\",\"talos-time\":\"2026-11-26T20:00:00Z\"}\n"
        );
        let own = of_service(MACHINED, b"WARN hot\n", at());
        assert_eq!(
            (&own["talos-level"], &own["msg"]),
            (&"warn".into(), &"hot".into())
        );
        // A container may print the same word.
        let other = of_service("web", b"WARN hot\n", at());
        assert_eq!(other["msg"], "WARN hot");
        let broken = of_service("web", b"\xff\n", at());
        assert_eq!(broken["msg"], "\u{fffd}");
    }

    #[test]
    fn the_kernels_lines_hide_where_the_config_comes_from() {
        let record = KernelRecord {
            facility: "kern",
            priority: "warning",
            number: 7,
            at: at(),
            message: "Command line: instar.config=https://u:secret@h/c?token=secret quiet"
                .to_owned(),
        };
        let line = of_kernel(record);
        let shown = text(&line, &[]);
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(line["talos-level"], "warn");
        assert_eq!(
            (&line["seq"], &line["priority"]),
            (&7.into(), &"warning".into())
        );
    }
}
