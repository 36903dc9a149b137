//! Connections of those who have not shown who they are. Anyone on the network can make them, so there may be only so many: a new
//! one takes the place of the oldest. Somebody who opens connections and says nothing cannot lock out those who have a certificate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::AbortHandle;

/// The strangers of this node; clones share the places.
#[derive(Clone)]
pub(super) struct Strangers {
    places: usize,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    next: u64,
    /// The oldest comes first.
    connections: BTreeMap<u64, AbortHandle>,
}

/// A place among the strangers, given back when this is dropped: when the connection has ended, or is no stranger's any more.
pub(super) struct Place {
    number: u64,
    strangers: Strangers,
}

impl Strangers {
    /// With this many places.
    pub(super) fn new(places: usize) -> Self {
        Strangers {
            places,
            shared: Arc::default(),
        }
    }

    /// Gives a place to a connection, whose task `spawn` starts. The oldest ones are ended if there are too many.
    pub(super) fn admit(&self, spawn: impl FnOnce(Place) -> AbortHandle) {
        let mut ended = Vec::new();
        let mut shared = self.lock();
        while shared.connections.len() >= self.places
            && let Some((_, oldest)) = shared.connections.pop_first()
        {
            ended.push(oldest);
        }
        let number = shared.next;
        shared.next += 1;
        let strangers = self.clone();
        let task = spawn(Place { number, strangers });
        shared.connections.insert(number, task);
        // The end of a task gives its place back, which takes the lock.
        drop(shared);
        for task in ended {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.strangers.lock().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::pending;
    use tokio::sync::oneshot;

    /// Admits a connection that stays until it is ended, or until the sender is used to say that it is known now.
    fn stay(strangers: &Strangers) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let (known, becomes_known) = oneshot::channel();
        let mut task = None;
        strangers.admit(|place| {
            let spawned = tokio::spawn(async move {
                if becomes_known.await.is_ok() {
                    drop(place);
                }
                pending::<()>().await;
            });
            let handle = spawned.abort_handle();
            task = Some(spawned);
            handle
        });
        (known, task.unwrap())
    }

    #[tokio::test]
    async fn a_new_one_takes_the_place_of_the_oldest() {
        let strangers = Strangers::new(2);
        let (_first_unknown, first) = stay(&strangers);
        let (_second_unknown, second) = stay(&strangers);
        let (_third_unknown, third) = stay(&strangers);
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!second.is_finished() && !third.is_finished());
        assert_eq!(strangers.lock().connections.len(), 2);
    }

    #[tokio::test]
    async fn who_is_known_is_not_ended() {
        let strangers = Strangers::new(1);
        let (known, first) = stay(&strangers);
        known.send(()).unwrap();
        while !strangers.lock().connections.is_empty() {
            tokio::task::yield_now().await;
        }
        let (_second_unknown, second) = stay(&strangers);
        let (_third_unknown, _third) = stay(&strangers);
        assert!(second.await.unwrap_err().is_cancelled());
        assert!(!first.is_finished());
    }
}
