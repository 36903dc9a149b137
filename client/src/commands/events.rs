//! `events`: shows the events of a node as they happen.

use std::time::Duration;

use instar_api::events::{EventPayload, stage_in_words};
use instar_api::machine::{Event, EventsRequest, phase_event, sequence_event, task_event};
use instar_client::{Failure, Node, newest_event, service_state};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::Status;

use crate::ask_again::ask_again;
use crate::cli::Global;
use crate::output::Output;
use crate::target;

/// Timeout for the newest event, which a node that has one sends at once.
const NEWEST: Duration = Duration::from_secs(2);

pub(super) async fn run(
    global: &Global,
    tail: Option<i32>,
    actor_id: Option<String>,
) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let actor = actor_id.unwrap_or_default();
    let requested = EventsRequest {
        tail_events: tail.unwrap_or(0),
        with_actor_id: actor.clone(),
        ..EventsRequest::default()
    };
    let ask = async |request: &EventsRequest| {
        let reply = node.machine().events(node.request(request.clone())).await?;
        Ok::<_, Status>(reply.into_inner())
    };
    let explain = |status| node.explain("cannot follow its events", status);
    let mut left_off = begin(&node, requested.tail_events).await;
    let mut stream = ask(&requested).await.map_err(explain)?;
    loop {
        match stream.message().await {
            Ok(Some(event)) => {
                show(global.output, &node, &event)?;
                // The greeting of a stream has no id.
                if !event.id.is_empty() {
                    left_off = event.id;
                }
            }
            Ok(None) => return Ok(()),
            Err(ended) => {
                let rest = after(&left_off, &actor);
                let again = ask_again(&node, ended, async || ask(&rest).await).await;
                stream = again.map_err(explain)?;
            }
        }
    }
}

/// The id of the newest event of before, so that a stream that breaks before its first event does not go on with the old ones. Empty if all events
/// are asked for.
async fn begin(node: &Node, tail: i32) -> String {
    if tail < 0 {
        return String::new();
    }
    match timeout(NEWEST, newest_event(node)).await {
        Ok(Ok(id)) => id,
        // A node that remembers no event has none to repeat. One that cannot be asked says so to the next call.
        Ok(Err(_)) | Err(_) => String::new(),
    }
}

/// Asks for the events after the last one that was shown. Of the next version all remembered events are asked for: it knows no older ones.
fn after(last: &str, actor: &str) -> EventsRequest {
    EventsRequest {
        tail_events: if last.is_empty() { -1 } else { 0 },
        tail_id: last.to_owned(),
        with_actor_id: actor.to_owned(),
        ..EventsRequest::default()
    }
}

fn show(output: Output, node: &Node, event: &Event) -> Result<(), Failure> {
    let Some(data) = &event.data else {
        return Ok(());
    };
    let (name, fields) = match EventPayload::unpack(data) {
        Ok(None) => return Ok(()),
        Ok(Some(payload)) => (payload.name().to_owned(), fields(&payload)),
        // An event type of a newer node: only its name is known.
        Err(_) => (data.type_url.clone(), json!({})),
    };
    output.show(
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
    )
}

/// The content of the event, by field.
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

/// The fields on one line: `sequence=upgrade action=start`; absent ones are left out.
fn text(fields: &Value) -> String {
    let Value::Object(fields) = fields else {
        return String::new();
    };
    let shown = fields.iter().filter_map(|(name, value)| match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        // An event is one line, whatever a service's message has.
        Value::String(text) => Some(format!("{name}={}", text.replace(['\n', '\r'], " "))),
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
            message: "no\nroom".into(),
            ..Error::default()
        });
        assert_eq!(
            text(&fields(&event.into())),
            "action=start error=no room sequence=upgrade"
        );
    }
}
