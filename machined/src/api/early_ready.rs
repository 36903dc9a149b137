//! Keeps the news that the node is ready from clients that would take it for the end of what they are about to ask for.
//!
//! A client that wants to see an upgrade through subscribes to the events from now on and asks for the upgrade at the same
//! moment. The first "running and ready" that it reads is its goal, and from then on it only waits for another boot id,
//! which a rollback brings as well. So a node that turns ready in that very moment would make it tell of a success whatever
//! came of the upgrade.
//!
//! That news is held back while a stream is young, and while somebody changes the machine. It is told after that, unless
//! there is another status by then.

use std::sync::Arc;
use std::time::Duration;

use instar_api::events::EventPayload;
use instar_api::machine::machine_status_event::MachineStage;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::event_log::Event;

/// Between a client's subscription and its request; they are sent together.
const YOUNG: Duration = Duration::from_secs(1);

/// The news that one stream is not told yet.
pub(super) struct EarlyReady {
    /// Since when the stream is no longer young.
    grown: Instant,
    /// Whether somebody changes the machine.
    turn: watch::Receiver<bool>,
    held: Option<Arc<Event>>,
}

impl EarlyReady {
    /// For a stream that begins now.
    pub(super) fn new(turn: watch::Receiver<bool>) -> Self {
        EarlyReady {
            grown: Instant::now() + YOUNG,
            turn,
            held: None,
        }
    }

    /// Takes the next event, and gives it back if it is to be told at once.
    pub(super) fn pass(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        let EventPayload::MachineStatus(status) = &event.payload else {
            return Some(event);
        };
        // What was held is no longer true.
        self.held = None;
        let ready = status.status.as_ref().is_some_and(|status| status.ready);
        let is_goal = ready && status.stage() == MachineStage::Running;
        if is_goal && (Instant::now() < self.grown || *self.turn.borrow()) {
            self.held = Some(event);
            return None;
        }
        Some(event)
    }

    /// What was held, once it may be told; pending while there is nothing. May be dropped and asked again.
    pub(super) async fn released(&mut self) -> Arc<Event> {
        if self.held.is_some() {
            tokio::time::sleep_until(self.grown).await;
            // Without a sender the machine is gone, and so is whoever could change it.
            let _ = self.turn.wait_for(|taken| !taken).await;
        }
        match self.held.take() {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::event_log::{ActorId, EventLog, Start};
    use instar_api::machine::machine_status_event::MachineStatus;
    use instar_api::machine::{MachineStatusEvent, TaskEvent};

    async fn event(payload: EventPayload) -> Arc<Event> {
        let log = EventLog::default();
        log.emit(&ActorId::default(), payload);
        log.read(&Start::History).next().await
    }

    async fn status(stage: MachineStage, ready: bool) -> Arc<Event> {
        event(EventPayload::MachineStatus(MachineStatusEvent {
            stage: stage.into(),
            status: Some(MachineStatus {
                ready,
                unmet_conditions: Vec::new(),
            }),
        }))
        .await
    }

    /// Of a stream that was young that long ago.
    fn grown(turn: &watch::Sender<bool>) -> EarlyReady {
        EarlyReady {
            grown: Instant::now(),
            ..EarlyReady::new(turn.subscribe())
        }
    }

    async fn is_silent(early: &mut EarlyReady) -> bool {
        let released = early.released();
        tokio::time::timeout(Duration::from_millis(50), released)
            .await
            .is_err()
    }

    #[tokio::test]
    async fn only_readiness_is_held_and_not_for_long() {
        let (turn, _) = watch::channel(false);
        let mut early = EarlyReady::new(turn.subscribe());
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

    #[tokio::test]
    async fn readiness_waits_for_the_end_of_changes_and_is_forgotten_when_it_is_over() {
        let (turn, _) = watch::channel(true);
        let mut early = grown(&turn);
        let ready = status(MachineStage::Running, true).await;
        assert!(early.pass(ready.clone()).is_none());
        assert!(is_silent(&mut early).await);
        turn.send_replace(false);
        assert_eq!(early.released().await.id, ready.id);

        turn.send_replace(true);
        assert!(early.pass(ready).is_none());
        let upgrading = status(MachineStage::Upgrading, false).await;
        assert!(early.pass(upgrading).is_some());
        turn.send_replace(false);
        assert!(is_silent(&mut early).await);
    }
}
