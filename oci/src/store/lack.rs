//! A lack of room, told by pulls to the part of the machine that knows which images are needed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Time limit for removing images that nothing needs.
const COLLECTION: Duration = Duration::from_secs(30);

/// The meeting of pulls that lack room and the collector.
#[derive(Debug, Default)]
pub(super) struct Lack {
    has_collector: AtomicBool,
    told: Notify,
    rounds: watch::Sender<u64>,
}

impl Lack {
    /// Has images removed that nothing needs, if there is a collector; waits for its next round to end.
    pub(super) async fn tell(&self) {
        if !self.has_collector.load(Ordering::Relaxed) {
            return;
        }
        let mut rounds = self.rounds.subscribe();
        self.told.notify_one();
        // The sender lives as long as the store; a collector that is late has not helped.
        let _ = timeout(COLLECTION, rounds.changed()).await;
    }

    /// The collector's wait for a lack.
    pub(super) async fn told(&self) {
        self.has_collector.store(true, Ordering::Relaxed);
        self.told.notified().await;
    }

    /// Ends a round of the collector.
    pub(super) fn round_ended(&self) {
        self.rounds.send_modify(|rounds| *rounds += 1);
    }
}
