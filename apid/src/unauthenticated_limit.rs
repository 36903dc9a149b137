//! Limits the connections of clients that have not shown a certificate. Anyone on the network can make them, so their number is limited: a
//! new one replaces a random one of the others. A client that opens connections and stays silent cannot lock out clients with a
//! certificate: if the oldest had to go, a flood would end each handshake before its end; at random, most get through.

use instar_base::lock::Lock as _;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::AbortHandle;

/// The places for connections of clients that have not shown a certificate; clones share them.
#[derive(Clone)]
pub(super) struct UnauthenticatedLimit {
    places: usize,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    next: u64,
    connections: BTreeMap<u64, AbortHandle>,
}

/// One such place, given back when it is dropped: when the connection has ended, or its client has shown a certificate.
pub(super) struct Place {
    number: u64,
    limit: UnauthenticatedLimit,
}

impl UnauthenticatedLimit {
    /// A limit of this many places.
    pub(super) fn new(places: usize) -> Self {
        UnauthenticatedLimit {
            places,
            shared: Arc::default(),
        }
    }

    /// Gives a place to a connection, whose task `spawn` starts. Ends a random one of the others if there are too many.
    pub(super) fn admit(&self, spawn: impl FnOnce(Place) -> AbortHandle) {
        let mut ended = Vec::new();
        let mut shared = self.lock();
        while shared.connections.len() >= self.places
            && let Some(task) = shared.remove_any()
        {
            ended.push(task);
        }
        let number = shared.next;
        shared.next += 1;
        let limit = self.clone();
        let task = spawn(Place { number, limit });
        shared.connections.insert(number, task);
        // Unlocked first: a task that ends gives its place back, which takes the lock.
        drop(shared);
        for task in ended {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.locked()
    }
}

impl Shared {
    /// Removes a connection that no client can predict.
    fn remove_any(&mut self) -> Option<AbortHandle> {
        // The standard library's random numbers, which it makes for its hash tables.
        let random = RandomState::new().hash_one(self.next);
        let count = u64::try_from(self.connections.len()).ok()?;
        let which = usize::try_from(random.checked_rem(count)?).ok()?;
        let number = *self.connections.keys().nth(which)?;
        self.connections.remove(&number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.limit.lock().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::pending;
    use tokio::sync::oneshot;

    /// Admits a connection that stays until it is ended, or until the sender reports that its client is authenticated.
    fn stay(limit: &UnauthenticatedLimit) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let (known, becomes_known) = oneshot::channel();
        let mut task = None;
        limit.admit(|place| {
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
    async fn a_new_one_takes_the_place_of_any_other() {
        let limit = UnauthenticatedLimit::new(8);
        let mut all: Vec<_> = (0..8).map(|_| stay(&limit)).collect();
        for _ in 0..4 {
            all.push(stay(&limit));
        }
        tokio::task::yield_now().await;
        assert_eq!(limit.lock().connections.len(), 8);
        let ended = all.iter().filter(|(_, task)| task.is_finished()).count();
        assert_eq!(ended, 4);
        let (_, newest) = all.last().unwrap();
        assert!(!newest.is_finished());
    }

    #[test]
    fn nobody_can_foresee_who_goes() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut gone = std::collections::BTreeSet::new();
            for _ in 0..64 {
                let limit = UnauthenticatedLimit::new(4);
                let all: Vec<_> = (0..5).map(|_| stay(&limit)).collect();
                tokio::task::yield_now().await;
                gone.extend(all.iter().position(|(_, task)| task.is_finished()));
            }
            // The chance that one of the four is never chosen in 64 rounds is 1 in 25 million.
            assert_eq!(gone, [0, 1, 2, 3].into());
        });
    }

    #[tokio::test]
    async fn who_is_known_is_not_ended() {
        let limit = UnauthenticatedLimit::new(1);
        let (known, first) = stay(&limit);
        known.send(()).unwrap();
        while !limit.lock().connections.is_empty() {
            tokio::task::yield_now().await;
        }
        let (_second_unknown, second) = stay(&limit);
        let (_third_unknown, _third) = stay(&limit);
        assert!(second.await.unwrap_err().is_cancelled());
        assert!(!first.is_finished());
    }
}
