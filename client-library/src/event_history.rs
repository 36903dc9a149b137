//! The events that a node remembers.

use std::time::Duration;

use instar_api::machine::{Event, EventsRequest};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::node::Node;

/// Timeout for the next message of a history.
const SILENCE: Duration = Duration::from_secs(10);
/// Values for [`EventsRequest::tail_events`].
const NEWEST: i32 = 1;
const ALL: i32 = -1;

/// The events that a node remembers, the oldest first, and the error if they are incomplete.
///
/// The stream of events continues with new ones, and nothing in it marks the end of the history. A pause is not the end: a busy node, or a
/// busy line, may be silent in the middle as well. So the newest event is asked for first, and the history is whole when that event has
/// come again.
pub async fn event_history(node: &Node) -> (Vec<Event>, Result<(), Status>) {
    let mut events = Vec::new();
    let whole = collect(node, &mut events).await;
    (events, whole)
}

/// The id of the newest event that a node remembers.
///
/// # Errors
/// The node's own status, or it remembers no event.
pub async fn newest_event(node: &Node) -> Result<String, Status> {
    Ok(next(&mut subscribe(node, NEWEST).await?).await?.id)
}

async fn collect(node: &Node, events: &mut Vec<Event>) -> Result<(), Status> {
    let newest = newest_event(node).await?;
    let mut history = subscribe(node, ALL).await?;
    loop {
        let event = next(&mut history).await?;
        let is_newest = event.id == newest;
        events.push(event);
        if is_newest {
            return Ok(());
        }
    }
}

/// Opens a stream of events, and skips the greeting at its begin.
async fn subscribe(node: &Node, tail_events: i32) -> Result<Streaming<Event>, Status> {
    let request = node.request(EventsRequest {
        tail_events,
        ..EventsRequest::default()
    });
    let mut events = node.machine().events(request).await?.into_inner();
    next(&mut events).await?;
    Ok(events)
}

async fn next(events: &mut Streaming<Event>) -> Result<Event, Status> {
    match timeout(SILENCE, events.message()).await {
        Ok(message) => message?.ok_or_else(|| Status::unavailable("the node ended its events")),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "no event came for {} s",
            SILENCE.as_secs()
        ))),
    }
}
