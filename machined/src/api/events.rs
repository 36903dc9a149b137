//! `Events`: replays old events and follows new ones.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instar_api::common::Metadata;
use instar_api::machine::{Event as WireEvent, EventsRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::readiness::Readiness;
use crate::machine::Machine;
use crate::store::event_log::{Event, Start};

/// Limit on the events that wait for one reader.
const AHEAD: usize = 16;

/// Returns the start of the stream that the request asks for.
fn start(request: &EventsRequest) -> Result<Start, Status> {
    let given = [
        request.tail_events != 0,
        !request.tail_id.is_empty(),
        request.tail_seconds != 0,
    ];
    if given.iter().filter(|given| **given).count() > 1 {
        return Err(Status::invalid_argument(
            "give one of tail_events, tail_id and tail_seconds",
        ));
    }
    Ok(
        match (
            request.tail_events,
            request.tail_id.as_str(),
            request.tail_seconds,
        ) {
            (..=-1, _, _) => Start::History,
            (count @ 1.., _, _) => Start::Last(usize::try_from(count).unwrap_or(usize::MAX)),
            (0, "", 0) => Start::Now,
            (0, "", seconds) => {
                let back = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
                Start::Since(
                    SystemTime::now()
                        .checked_sub(back)
                        .unwrap_or(SystemTime::UNIX_EPOCH),
                )
            }
            (0, id, _) => Start::After(id.to_owned()),
        },
    )
}

/// Opens the stream for one reader.
pub(super) fn stream(
    machine: &Machine,
    request: EventsRequest,
    metadata: Option<Metadata>,
) -> Result<ReceiverStream<Result<WireEvent, Status>>, Status> {
    let start = start(&request)?;
    let mut reader = machine.events.read(&start);
    let mut readiness =
        (start == Start::Now).then(|| Readiness::new(machine.operations.watch(), &machine.events));
    let (sender, receiver) = mpsc::channel(AHEAD);
    crate::base::task::spawn(async move {
        // Clients drop the first message, whatever it is, and do nothing until it arrives.
        let hello = WireEvent {
            metadata: metadata.clone(),
            ..instar_api::events::hello()
        };
        if sender.send(Ok(hello)).await.is_err() {
            return;
        }
        loop {
            let event = tokio::select! {
                // New events first: the next one may make the held one untrue.
                biased;
                () = sender.closed() => return,
                event = reader.next() => match &mut readiness {
                    Some(readiness) => readiness.pass(event),
                    None => Some(event),
                },
                event = released(&mut readiness) => Some(event),
            };
            let Some(event) = event else { continue };
            if !request.with_actor_id.is_empty() && request.with_actor_id != event.actor.0 {
                continue;
            }
            if sender.send(Ok(to_wire(&event, &metadata))).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(receiver))
}

async fn released(readiness: &mut Option<Readiness>) -> Arc<Event> {
    match readiness {
        Some(readiness) => readiness.released().await,
        None => std::future::pending().await,
    }
}

fn to_wire(event: &Event, metadata: &Option<Metadata>) -> WireEvent {
    WireEvent {
        metadata: metadata.clone(),
        data: Some(event.payload.pack()),
        id: event.id.clone(),
        actor_id: event.actor.0.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn request(tail_events: i32, tail_id: &str, tail_seconds: i32) -> EventsRequest {
        EventsRequest {
            tail_events,
            tail_id: tail_id.into(),
            tail_seconds,
            ..Default::default()
        }
    }

    #[test]
    fn one_way_to_say_where_to_start() {
        assert_eq!(start(&request(0, "", 0)).unwrap(), Start::Now);
        assert_eq!(start(&request(-1, "", 0)).unwrap(), Start::History);
        assert_eq!(start(&request(7, "", 0)).unwrap(), Start::Last(7));
        assert_eq!(
            start(&request(0, "x", 0)).unwrap(),
            Start::After("x".into())
        );
        assert!(matches!(
            start(&request(0, "", 5)).unwrap(),
            Start::Since(_)
        ));
        assert!(start(&request(1, "x", 0)).is_err());
    }
}
