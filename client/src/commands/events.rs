//! `events`: what happens on the node, as it happens.

use instar_api::events::{EventPayload, stage_in_words};
use instar_api::machine::{EventsRequest, phase_event, sequence_event, task_event};
use instar_client::{Failure, service_state};
use serde_json::{Value, json};

use crate::cli::Global;
use crate::target;

pub(super) async fn run(
    global: &Global,
    tail: Option<i32>,
    actor_id: Option<String>,
) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let request = EventsRequest {
        tail_events: tail.unwrap_or(0),
        with_actor_id: actor_id.unwrap_or_default(),
        ..EventsRequest::default()
    };
    let doing = "cannot follow its events";
    let reply = node.machine().events(node.request(request)).await;
    let mut stream = reply
        .map_err(|status| node.explain(doing, status))?
        .into_inner();
    while let Some(event) = stream
        .message()
        .await
        .map_err(|status| node.explain(doing, status))?
    {
        let Some(data) = &event.data else { continue };
        let (name, fields) = match EventPayload::unpack(data) {
            Ok(None) => continue,
            Ok(Some(payload)) => (payload.name().to_owned(), fields(&payload)),
            // Of a newer node: its name is all that can be told.
            Err(_) => (data.type_url.clone(), json!({})),
        };
        global.output.show(
            || {
                let actor = if event.actor_id.is_empty() {
                    "-"
                } else {
                    &event.actor_id
                };
                format!(
                    "{}  {}  {actor:<36}  {name:<20}  {}",
                    node.name(),
                    event.id,
                    text(&fields)
                )
            },
            || {
                json!({
                    "node": node.name(),
                    "id": event.id,
                    "actor_id": event.actor_id,
                    "type": name,
                    "data": fields,
                })
            },
        )?;
    }
    Ok(())
}

/// What the event says, by field.
fn fields(payload: &EventPayload) -> Value {
    match payload {
        EventPayload::Sequence(event) => json!({
            "sequence": event.sequence,
            "action": match event.action() {
                sequence_event::Action::Noop => "noop",
                sequence_event::Action::Start => "start",
                sequence_event::Action::Stop => "stop",
            },
            "error": event.error.as_ref().map(|error| &error.message),
        }),
        EventPayload::Phase(event) => json!({
            "phase": event.phase,
            "action": if event.action() == phase_event::Action::Start { "start" } else { "stop" },
        }),
        EventPayload::Task(event) => json!({
            "task": event.task,
            "action": if event.action() == task_event::Action::Start { "start" } else { "stop" },
        }),
        EventPayload::ServiceState(event) => json!({
            "service": event.service,
            "action": service_state(event.action()),
            "message": event.message,
        }),
        EventPayload::MachineStatus(event) => {
            let status = event.status.clone().unwrap_or_default();
            let unmet = status
                .unmet_conditions
                .iter()
                .map(|unmet| format!("{}: {}", unmet.name, unmet.reason));
            json!({
                "stage": stage_in_words(event.stage()),
                "ready": status.ready,
                "unmet": unmet.collect::<Vec<_>>(),
            })
        }
        EventPayload::Restart(event) => json!({ "cmd": event.cmd }),
        EventPayload::ConfigLoadError(event) => json!({ "error": event.error }),
        EventPayload::ConfigValidationError(event) => json!({ "error": event.error }),
        EventPayload::Address(event) => {
            json!({ "hostname": event.hostname, "addresses": event.addresses })
        }
    }
}

/// The same on one line: `sequence=upgrade action=start`; what is absent is left out.
fn text(fields: &Value) -> String {
    let Value::Object(fields) = fields else {
        return String::new();
    };
    let shown = fields.iter().filter_map(|(name, value)| match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(format!("{name}={text}")),
        Value::Array(items) if items.is_empty() => None,
        other => Some(format!("{name}={other}")),
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use instar_api::common::Error;
    use instar_api::machine::SequenceEvent;

    use super::*;

    #[test]
    fn an_event_on_one_line() {
        let mut event = SequenceEvent {
            sequence: "upgrade".into(),
            ..SequenceEvent::default()
        };
        event.set_action(sequence_event::Action::Start);
        assert_eq!(
            text(&fields(&event.clone().into())),
            "action=start sequence=upgrade"
        );
        event.error = Some(Error {
            message: "no room".into(),
            ..Error::default()
        });
        assert_eq!(
            text(&fields(&event.into())),
            "action=start error=no room sequence=upgrade"
        );
    }
}
