//! Delays or repeats the event "running and ready" on streams that start from now on, so that a client that follows an upgrade or
//! a reboot gets it neither too early nor too late. The first such event that the client reads is its goal.
//!
//! *Too early.* A client subscribes and asks for its upgrade at the same moment. After its goal it only waits for another boot id, which
//! a rollback brings as well. So a node that becomes ready in that very moment would make the client report a success, however the
//! upgrade ended. The event is held back while a stream is young and while an operation changes the machine. It is sent after that,
//! unless the status has changed by then.
//!
//! *Too late.* A client that knows of a reboot leaves its stream, and subscribes again a second later, to events from now on. While the
//! node is down, that call waits in its connection, and gets through when the machine is up again: by then the node may be ready, with
//! the event in the past. So a client that subscribes soon after the event gets it once more, unless it starts an operation. If an
//! upgrade failed before, the client gets that event first: readiness alone would count as success.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use instar_api::events::EventPayload;
use instar_api::machine::machine_status_event::MachineStage;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::operation_lock::Holder;
use crate::store::event_log::{Event, EventLog};

/// Longest time between a client's subscription and its request; they are sent together.
const YOUNG: Duration = Duration::from_secs(1);
/// The same for an event from before the subscription. It is longer because every new subscriber would take the event for its
/// goal, on however slow a link.
const IDLE: Duration = Duration::from_secs(5);
/// Longest time that a client's call may have waited in its connection: gRPC gives a connection 20 s, and TCP tries again after
/// 1, 3, 7 and 15 s.
const NEWS: Duration = Duration::from_secs(60);

/// The event that one stream does not send yet.
pub(super) struct Readiness {
    /// The time from which the stream is no longer young.
    grown: Instant,
    /// The operation that changes the machine.
    holder: watch::Receiver<Option<Holder>>,
    held: Option<Held>,
}

struct Held {
    until: Instant,
    /// The events, in order.
    events: VecDeque<Arc<Event>>,
}

impl Readiness {
    /// Creates the state of a stream that begins now, after the events in `before`.
    pub(super) fn new(holder: watch::Receiver<Option<Holder>>, before: &EventLog) -> Self {
        let now = Instant::now();
        let is_news = |event: &Arc<Event>| is_goal(event) && event.since.elapsed() < NEWS;
        let ready = before.newest(is_status).filter(is_news);
        Readiness {
            grown: now + YOUNG,
            holder,
            held: ready.map(|ready| Held {
                until: now + IDLE,
                events: before
                    .newest(is_failure)
                    .into_iter()
                    .chain([ready])
                    .collect(),
            }),
        }
    }

    /// Takes the next event. Returns it if it is to be sent at once.
    pub(super) fn pass(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        if !is_status(&event.payload) {
            return Some(event);
        }
        // The status has changed, so the held event is no longer true.
        self.held = None;
        if is_goal(&event) && (Instant::now() < self.grown || self.holder.borrow().is_some()) {
            self.held = Some(Held {
                until: self.grown,
                events: VecDeque::from([event]),
            });
            return None;
        }
        Some(event)
    }

    /// Waits until a held event may be sent, and returns it; pending while there is none. The future may be dropped and the call repeated.
    pub(super) async fn released(&mut self) -> Arc<Event> {
        if let Some(held) = &mut self.held {
            tokio::time::sleep_until(held.until).await;
            // An error means that the machine's sender is gone: then no operation can run.
            let _ = self.holder.wait_for(Option::is_none).await;
            if let Some(event) = held.events.pop_front() {
                return event;
            }
        }
        std::future::pending().await
    }
}

fn is_status(payload: &EventPayload) -> bool {
    matches!(payload, EventPayload::MachineStatus(_))
}

fn is_failure(payload: &EventPayload) -> bool {
    matches!(payload, EventPayload::Sequence(sequence) if sequence.error.is_some())
}

fn is_goal(event: &Event) -> bool {
    let EventPayload::MachineStatus(status) = &event.payload else {
        return false;
    };
    let ready = status.status.as_ref().is_some_and(|status| status.ready);
    ready && status.stage() == MachineStage::Running
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::operation_lock::{Operation, Operations};
    use crate::store::event_log::{ActorId, Start};
    use instar_api::common::Error as WireError;
    use instar_api::machine::machine_status_event::MachineStatus;
    use instar_api::machine::{MachineStatusEvent, SequenceEvent, TaskEvent};

    async fn event(payload: EventPayload) -> Arc<Event> {
        log_of([payload]).read(&Start::History).next().await
    }

    fn log_of(payloads: impl IntoIterator<Item = EventPayload>) -> EventLog {
        let log = EventLog::default();
        for payload in payloads {
            log.emit(&ActorId::default(), payload);
        }
        log
    }

    fn stage(stage: MachineStage, ready: bool) -> EventPayload {
        EventPayload::MachineStatus(MachineStatusEvent {
            stage: stage.into(),
            status: Some(MachineStatus {
                ready,
                unmet_conditions: Vec::new(),
            }),
        })
    }

    async fn status(of: MachineStage, ready: bool) -> Arc<Event> {
        event(stage(of, ready)).await
    }

    fn sequence(name: &str, error: Option<&str>) -> EventPayload {
        EventPayload::Sequence(SequenceEvent {
            sequence: name.to_owned(),
            error: error.map(|message| WireError {
                message: message.to_owned(),
                ..WireError::default()
            }),
            ..SequenceEvent::default()
        })
    }

    /// Creates the state of a stream that is no longer young.
    fn grown(operations: &Operations) -> Readiness {
        Readiness {
            grown: Instant::now(),
            ..Readiness::new(operations.watch(), &EventLog::default())
        }
    }

    async fn is_silent(readiness: &mut Readiness) -> bool {
        is_silent_for(Duration::from_millis(50), readiness).await
    }

    async fn is_silent_for(time: Duration, readiness: &mut Readiness) -> bool {
        let released = readiness.released();
        tokio::time::timeout(time, released).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn only_readiness_is_held_and_not_for_long() {
        let operations = Operations::default();
        let mut early = Readiness::new(operations.watch(), &EventLog::default());
        let task = EventPayload::Task(TaskEvent::default());
        assert!(early.pass(event(task).await).is_some());
        for stage in [MachineStage::Booting, MachineStage::Maintenance] {
            assert!(early.pass(status(stage, true).await).is_some());
        }
        assert!(
            early
                .pass(status(MachineStage::Running, false).await)
                .is_some()
        );
        assert!(is_silent(&mut early).await, "nothing is held");

        let ready = status(MachineStage::Running, true).await;
        assert!(early.pass(ready.clone()).is_none());
        assert!(is_silent(&mut early).await, "the stream is young");
        assert_eq!(early.released().await.id, ready.id);
        assert!(early.pass(ready).is_some(), "the stream is grown");
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_waits_for_the_end_of_changes_and_is_forgotten_when_it_is_over() {
        let operations = Operations::default();
        let upgrade = operations.lock(Operation::Upgrade);
        let mut early = grown(&operations);
        let ready = status(MachineStage::Running, true).await;
        assert!(early.pass(ready.clone()).is_none());
        assert!(is_silent(&mut early).await);
        drop(upgrade);
        assert_eq!(early.released().await.id, ready.id);

        let upgrade = operations.lock(Operation::Upgrade);
        assert!(early.pass(ready).is_none());
        let upgrading = status(MachineStage::Upgrading, false).await;
        assert!(early.pass(upgrading).is_some());
        drop(upgrade);
        assert!(is_silent(&mut early).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_after_the_news_hears_it_unless_he_asks_for_something() {
        let operations = Operations::default();
        let log = log_of([stage(MachineStage::Running, true)]);
        let mut late = Readiness::new(operations.watch(), &log);
        let begun = Instant::now();
        assert!(is_goal(&*late.released().await));
        assert_eq!(begun.elapsed(), IDLE);
        assert!(is_silent(&mut late).await, "it is told twice");

        // The client's call takes the lock, and the status changes.
        let mut asks = Readiness::new(operations.watch(), &log);
        let upgrade = operations.lock(Operation::Upgrade);
        assert!(is_silent_for(IDLE * 2, &mut asks).await);
        let upgrading = status(MachineStage::Upgrading, false).await;
        assert!(asks.pass(upgrading).is_some());
        drop(upgrade);
        assert!(is_silent(&mut asks).await);

        // A minute later the event is not repeated, nor after another status.
        tokio::time::sleep(NEWS).await;
        let mut later = Readiness::new(operations.watch(), &log);
        assert!(is_silent_for(IDLE * 2, &mut later).await);
        log.emit(&ActorId::default(), stage(MachineStage::Upgrading, false));
        let mut later = Readiness::new(operations.watch(), &log);
        assert!(is_silent_for(IDLE * 2, &mut later).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_told_before_the_readiness_of_what_came_back() {
        let operations = Operations::default();
        let log = log_of([
            sequence("upgrade", Some("no answer")),
            sequence("boot", None),
            stage(MachineStage::Running, true),
        ]);
        let mut late = Readiness::new(operations.watch(), &log);
        assert!(is_failure(&late.released().await.payload));
        assert!(is_goal(&*late.released().await));
        assert!(is_silent(&mut late).await);
    }
}
