//! talosctl's wait for the end of a reboot, an upgrade, a shutdown or a reset (`--wait`, which is its default), quirks
//! included: a node that satisfies this client satisfies talosctl.
//!
//! ```text
//! Events, from now on ─ Read boot id ─ the action, which Events may come after
//!    │
//!    ├ own sequence has an error ──────────────────────────────────► failed
//!    ├ own stopAllServices or own reboot: leave the stream, 1 s later Events from now on
//!    ├ stream or link broken: 1 s later Events with the whole history
//!    └ the goal ─ once a second: what is checked ─ holds ──────────► done
//! ```
//!
//! The first message of every stream is passed over, whatever it is. The reaction to each situation is tested against a
//! server that keeps to a script (`wait/rows.rs`).

use std::time::Duration;

use tonic::{Code, Status};

use super::wire::Fields;

#[cfg(test)]
mod rows;

/// Pause between two subscriptions, and between two polls of the check.
const PAUSE: Duration = Duration::from_secs(1);
/// Prefix of the URL of an event's type.
const EVENT_TYPES: &str = "talos/runtime/machine.";
/// Names of all events that the trackers know.
const KNOWN_EVENTS: [&str; 9] = [
    "AddressEvent",
    "ConfigLoadErrorEvent",
    "ConfigValidationErrorEvent",
    "MachineStatusEvent",
    "PhaseEvent",
    "RestartEvent",
    "SequenceEvent",
    "ServiceStateEvent",
    "TaskEvent",
];
/// `MachineStatusEvent.MachineStage.RUNNING`.
const STAGE_RUNNING: u64 = 4;

/// The event that ends the watching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The machine reports that it runs and is ready.
    Ready,
    /// A task that stops all services, of any actor.
    ServicesStop,
}

/// The condition that is checked afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// No condition.
    Nothing,
    /// The boot id has changed.
    BootId,
    /// The machine answers a client without a certificate, or the boot id has changed.
    MaintenanceOrBootId,
}

/// The first to reach the server of two calls that are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The usual order.
    Events,
    /// The order of 6 among 65 recorded runs.
    Action,
}

/// The result of the wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The requested action has happened: exit code 0.
    Done,
    /// The node gave a reason for refusing or failing: exit code 1, at once.
    Failed(String),
    /// The timeout expired: exit code 1.
    Late,
}

/// The calls that the wait needs from a node.
pub(super) trait Server {
    type Events: Events;

    /// Subscribes: to events from now on (0), or to the whole history before them (-1).
    async fn events(&self, tail: i64) -> Result<Self::Events, Status>;
    async fn boot_id(&self) -> Result<String, Status>;
    /// Calls the action; returns the actor's id, none if the answer is empty.
    async fn act(&self) -> Result<Option<String>, Status>;
    /// Lists disks without a certificate, as only a node in maintenance mode allows.
    async fn disks_without_certificate(&self) -> Result<(), Status>;
}

/// A stream of events.
pub(super) trait Events {
    async fn next(&mut self) -> Result<Option<Fields>, Status>;
}

/// Acts and waits; the output has one line per event. It may never end: the caller has the timeout.
pub(super) async fn act_and_wait<S: Server>(
    server: &S,
    goal: Goal,
    check: Check,
    first: First,
    told: &mut Vec<String>,
) -> Ending {
    let ask = async || -> Result<_, String> {
        let before = match check {
            Check::Nothing => None,
            _ => match server.boot_id().await {
                Ok(id) => Some(id),
                Err(status) if status.code() == Code::PermissionDenied => None,
                Err(status) => return Err(format!("cannot read the boot id: {status}")),
            },
        };
        match server.act().await {
            Ok(Some(actor)) => Ok((before, actor)),
            Ok(None) => Err("no messages returned".to_owned()),
            Err(status) => Err(status.to_string()),
        }
    };
    let (stream, asked) = match first {
        First::Events => {
            let stream = server.events(0).await;
            (stream, ask().await)
        }
        First::Action => {
            let asked = ask().await;
            (server.events(0).await, asked)
        }
    };
    let (before, actor) = match asked {
        Ok(asked) => asked,
        Err(why) => return Ending::Failed(why),
    };
    if let Err(why) = see_the_goal(server, stream, goal, &actor, told).await {
        return Ending::Failed(why);
    }
    while !holds(server, check, before.as_deref()).await {
        tokio::time::sleep(PAUSE).await;
    }
    Ending::Done
}

async fn holds<S: Server>(server: &S, check: Check, before: Option<&str>) -> bool {
    let Some(before) = before else {
        return true;
    };
    if check == Check::MaintenanceOrBootId && server.disks_without_certificate().await.is_ok() {
        return true;
    }
    matches!(server.boot_id().await, Ok(now) if now != before)
}

/// Reads events until the goal is among them; an error ends the whole wait.
async fn see_the_goal<S: Server>(
    server: &S,
    mut stream: Result<S::Events, Status>,
    goal: Goal,
    actor: &str,
    told: &mut Vec<String>,
) -> Result<(), String> {
    loop {
        let seen = match stream {
            Ok(ref mut stream) => read(stream, goal, actor, told).await,
            Err(status) if is_link_lost(&status) => Seen::LinkLost(status.to_string()),
            // Waits for ever.
            Err(_) => std::future::pending().await,
        };
        // Subscribes from now on, unless the link was lost.
        let tail = match seen {
            Seen::Goal => return Ok(()),
            Seen::Failure(why) => return Err(why),
            Seen::OnItsWayDown => 0,
            Seen::LinkLost(why) => {
                told.push(format!("unavailable, retrying: {why}"));
                -1
            }
        };
        tokio::time::sleep(PAUSE).await;
        stream = server.events(tail).await;
    }
}

fn is_link_lost(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Cancelled)
}

/// Why the reading of a stream ended.
enum Seen {
    Goal,
    Failure(String),
    OnItsWayDown,
    LinkLost(String),
}

async fn read(stream: &mut impl Events, goal: Goal, actor: &str, told: &mut Vec<String>) -> Seen {
    let mut is_first = true;
    loop {
        let event = match stream.next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Seen::LinkLost("the stream ended".to_owned()),
            Err(status) if is_link_lost(&status) => return Seen::LinkLost(status.to_string()),
            Err(status) => return Seen::Failure(status.to_string()),
        };
        if std::mem::take(&mut is_first) {
            continue;
        }
        let data = event.message_of(2).unwrap_or_default();
        let url = data.text_of(1);
        let Some(name) = known_event(&url) else {
            return Seen::Failure(format!("an event of the type {url:?}"));
        };
        let own = event.text_of(4) == actor;
        let payload = data.message_of(2).unwrap_or_default();
        told.push(describe(name, &payload, own));
        if is_goal(goal, name, &payload) {
            return Seen::Goal;
        }
        match (name, payload.text_of(1).as_str()) {
            ("SequenceEvent", "reboot") | ("TaskEvent", "stopAllServices") if own => {
                return Seen::OnItsWayDown;
            }
            ("SequenceEvent", _) if own => {
                if let Some(error) = payload.message_of(3) {
                    return Seen::Failure(error.text_of(2));
                }
            }
            _ => {}
        }
    }
}

/// Returns the message's name from the URL of its type.
pub(super) fn known_event(url: &str) -> Option<&str> {
    let name = url.strip_prefix(EVENT_TYPES)?;
    KNOWN_EVENTS.contains(&name).then_some(name)
}

/// Whether this event is the goal, of any actor.
fn is_goal(goal: Goal, name: &str, payload: &Fields) -> bool {
    match goal {
        Goal::Ready => {
            let status = payload.message_of(2).unwrap_or_default();
            name == "MachineStatusEvent" && payload.number_of(1) == STAGE_RUNNING && status.is(1)
        }
        Goal::ServicesStop => name == "TaskEvent" && payload.text_of(1) == "stopAllServices",
    }
}

/// Describes an event for people.
pub(super) fn describe(name: &str, payload: &Fields, own: bool) -> String {
    let whose = if own { "own " } else { "" };
    match name {
        "SequenceEvent" => format!(
            "{whose}sequence {} {} {}",
            payload.text_of(1),
            ["NOOP", "START", "STOP"]
                .get(payload.number_of(2) as usize)
                .unwrap_or(&"?"),
            payload.message_of(3).unwrap_or_default().text_of(2)
        ),
        "PhaseEvent" | "TaskEvent" => format!(
            "{whose}{name} {} {}",
            payload.text_of(1),
            ["START", "STOP"]
                .get(payload.number_of(2) as usize)
                .unwrap_or(&"?")
        ),
        "ServiceStateEvent" => format!(
            "service {} {} healthy {}",
            payload.text_of(1),
            payload.text_of(3),
            payload.message_of(4).unwrap_or_default().is(2)
        ),
        "MachineStatusEvent" => format!(
            "{whose}stage {} ready {}",
            payload.number_of(1),
            payload.message_of(2).unwrap_or_default().is(1)
        ),
        _ => format!("{whose}{name}"),
    }
}
