//! The machine's events: a bounded history for replay, and a stream of new ones.
//!
//! The history lives as long as the generation. A reader that falls behind by more than the whole history finds a gap in its stream; the
//! machine never waits for it.

use crate::base::lock::Lock as _;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use instar_api::events::EventPayload;
use tokio::sync::watch;
use tokio::time::Instant;

/// Limit on kept events.
const HISTORY: usize = 1000;

/// The call that caused an event; empty for an event without a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ActorId(pub String);

impl ActorId {
    /// Returns a new identity for a call.
    pub fn new() -> Self {
        ActorId(uuid::Uuid::new_v4().to_string())
    }
}

/// One kept event.
#[derive(Debug, Clone)]
pub struct Event {
    /// Sortable by time.
    pub id: String,
    /// The call that caused it.
    pub actor: ActorId,
    /// When it happened.
    pub at: SystemTime,
    /// The same moment by a clock that is never set.
    pub since: Instant,
    /// The content.
    pub payload: EventPayload,
}

/// The place where a reader starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With the next event.
    Now,
    /// With the whole history.
    History,
    /// With the newest events, at most this many.
    Last(usize),
    /// After the event of this id; with the whole history if that event is no longer kept.
    After(String),
    /// With the events since that time.
    Since(SystemTime),
}

/// The event log; clones share it.
#[derive(Clone)]
pub struct EventLog {
    kept: Arc<Mutex<Kept>>,
    /// Number of events so far; followers wait for it to change.
    newest: watch::Sender<u64>,
    counter: Arc<AtomicU64>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<Arc<Event>>,
    first: u64,
}

/// A position in the log.
pub struct Reader {
    log: EventLog,
    next: u64,
    news: watch::Receiver<u64>,
}

impl Default for EventLog {
    fn default() -> Self {
        EventLog {
            kept: Arc::default(),
            newest: watch::channel(0).0,
            counter: Arc::default(),
        }
    }
}

impl EventLog {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.locked()
    }

    /// Adds an event.
    pub fn emit(&self, actor: &ActorId, payload: EventPayload) {
        let at = SystemTime::now();
        let micros = at
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_micros();
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let event = Event {
            id: format!("{micros:016x}{:04x}", count & 0xffff),
            actor: actor.clone(),
            at,
            since: Instant::now(),
            payload,
        };
        let newest = {
            let mut kept = self.lock();
            kept.events.push_back(Arc::new(event));
            if kept.events.len() > HISTORY {
                kept.events.pop_front();
                kept.first += 1;
            }
            kept.first + kept.events.len() as u64
        };
        self.newest.send_replace(newest);
    }

    /// Returns the newest event of a kind, if it is still kept.
    pub fn newest(&self, is_of_kind: impl Fn(&EventPayload) -> bool) -> Option<Arc<Event>> {
        let kept = self.lock();
        let mut from_the_end = kept.events.iter().rev();
        from_the_end
            .find(|event| is_of_kind(&event.payload))
            .cloned()
    }

    /// Returns a reader that starts at the given place.
    pub fn read(&self, start: &Start) -> Reader {
        let kept = self.lock();
        let length = kept.events.len();
        let skipped = match start {
            Start::Now => length,
            Start::History => 0,
            Start::Last(count) => length.saturating_sub(*count),
            Start::After(id) => kept
                .events
                .iter()
                .position(|event| event.id == *id)
                .map_or(0, |at| at + 1),
            Start::Since(time) => kept
                .events
                .iter()
                .position(|event| event.at >= *time)
                .unwrap_or(length),
        };
        Reader {
            log: self.clone(),
            next: kept.first + skipped as u64,
            news: self.newest.subscribe(),
        }
    }
}

impl Reader {
    /// Waits for the next event and returns it.
    pub async fn next(&mut self) -> Arc<Event> {
        loop {
            if let Some(event) = self.next_kept() {
                return event;
            }
            let next = self.next;
            // The sender lives in `self.log`, so this cannot fail.
            let _ = self.news.wait_for(|newest| *newest > next).await;
        }
    }

    fn next_kept(&mut self) -> Option<Arc<Event>> {
        let kept = self.log.lock();
        self.next = self.next.max(kept.first);
        let event = kept
            .events
            .get(usize::try_from(self.next - kept.first).ok()?)?
            .clone();
        self.next += 1;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_api::machine::TaskEvent;

    fn task(name: &str) -> EventPayload {
        EventPayload::Task(TaskEvent {
            task: name.to_owned(),
            action: 0,
        })
    }

    fn names(log: &EventLog, start: &Start) -> Vec<String> {
        let mut reader = log.read(start);
        std::iter::from_fn(|| reader.next_kept())
            .map(|event| match &event.payload {
                EventPayload::Task(task) => task.task.clone(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_reader_starts_where_it_asks() {
        let log = EventLog::default();
        for name in ["a", "b", "c"] {
            log.emit(&ActorId::default(), task(name));
        }
        assert_eq!(names(&log, &Start::Now), [""; 0]);
        assert_eq!(names(&log, &Start::History), ["a", "b", "c"]);
        assert_eq!(names(&log, &Start::Last(2)), ["b", "c"]);
        let id = log.lock().events[1].id.clone();
        assert_eq!(names(&log, &Start::After(id)), ["c"]);
        assert_eq!(names(&log, &Start::After("gone".into())), ["a", "b", "c"]);
    }

    #[test]
    fn the_history_is_bounded_and_ids_sort_by_time() {
        let log = EventLog::default();
        let mut reader = log.read(&Start::History);
        for _ in 0..HISTORY + 5 {
            log.emit(&ActorId::default(), task("t"));
        }
        let kept = log
            .lock()
            .events
            .iter()
            .map(|event| event.id.clone())
            .collect::<Vec<_>>();
        assert_eq!(kept.len(), HISTORY);
        assert!(kept.is_sorted());
        assert!(reader.next_kept().is_some());
    }
}
