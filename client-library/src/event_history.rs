//! What a node remembers of its events.

use std::time::Duration;

use instar_api::machine::{Event, EventsRequest};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::node::Node;

/// How long the next message of a history may take.
const SILENCE: Duration = Duration::from_secs(10);
/// For [`EventsRequest::tail_events`].
const NEWEST: i32 = 1;
const ALL: i32 = -1;

/// The events that a node remembers, the oldest first, and what kept them from being all.
///
/// The stream of events goes on with what happens next, and nothing in it says where the history ends. That nothing comes for a moment is
/// no sign of it: a busy node, or a busy line, is silent in its middle as well. So the newest event is asked for first, and when that
/// one has come again the history is whole.
pub async fn event_history(node: &Node) -> (Vec<Event>, Result<(), Status>) {
    let mut events = Vec::new();
    let whole = collect(node, &mut events).await;
    (events, whole)
}

async fn collect(node: &Node, events: &mut Vec<Event>) -> Result<(), Status> {
    let newest = next(&mut subscribe(node, NEWEST).await?).await?.id;
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

/// A stream of events, after the greeting that begins it.
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
