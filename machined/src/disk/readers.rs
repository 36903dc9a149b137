//! Callers who read files of the disk: they hold it mounted, and are asked to end before it is unmounted for good.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::base::lock::Lock as _;

/// Time limit for the readers to end: each may be in the middle of a read.
const LIMIT: Duration = Duration::from_secs(10);

/// The readers of one disk; clones share them.
#[derive(Debug, Clone)]
pub struct Readers(Arc<Mutex<watch::Sender<bool>>>);

/// One reader. It is to close its files when it is told to, and then to drop this.
#[derive(Debug, Clone)]
pub struct Reading(watch::Receiver<bool>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(watch::Sender::new(false))))
    }
}

impl Readers {
    /// Adds a reader. To be called before it opens a file.
    pub fn enter(&self) -> Reading {
        Reading(self.0.locked().subscribe())
    }

    /// Tells all readers to end, and waits until they have, within a limit.
    pub async fn end(&self) {
        let told = std::mem::replace(&mut *self.0.locked(), watch::Sender::new(false));
        told.send_replace(true);
        if tokio::time::timeout(LIMIT, told.closed()).await.is_err() {
            tracing::warn!("callers still read files of the disk");
        }
    }
}

impl Reading {
    /// Waits until the reader is to end.
    pub async fn told_to_end(&mut self) {
        // Without its sender the machine's disk is gone, too.
        let _ = self.0.wait_for(|told| *told).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readers_end_when_they_are_told() {
        let readers = Readers::default();
        readers.end().await;
        let mut reading = readers.enter();
        let ends = tokio::spawn(async move { reading.told_to_end().await });
        readers.end().await;
        assert!(ends.is_finished() || ends.await.is_ok());
        // A new one is not told of an earlier end.
        let mut later = readers.enter();
        let told = tokio::time::timeout(Duration::from_secs(1), later.told_to_end()).await;
        assert!(told.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_hangs_holds_nobody_up_for_longer_than_the_limit() {
        let readers = Readers::default();
        let _hangs = readers.enter();
        let begun = tokio::time::Instant::now();
        readers.end().await;
        assert_eq!(begun.elapsed(), LIMIT);
    }
}
