//! A limit on the bandwidth of downloads. All transfers that share it stay below it together.
//!
//! A blob is fetched once, whoever wants it. If a pull waits for a blob that another one fetches, the blob comes at the bandwidth of the faster of
//! the two: nobody in a hurry waits for another one's limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::token_bucket::TokenBucket;
use instar_base::lock::Lock as _;
use instar_values::Bandwidth;

/// Limit on one pause. The largest piece takes 16 seconds at the lowest bandwidth.
const LONGEST: Duration = Duration::from_secs(60);

/// The limit, if there is one at present.
#[derive(Debug, Default)]
pub struct Pace {
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    bandwidth: Bandwidth,
    bucket: TokenBucket,
    /// The last time that bytes were counted.
    counted: Instant,
}

impl Pace {
    /// Sets the bandwidth from now on; `None`: no limit.
    pub fn set(&self, bandwidth: Option<Bandwidth>) {
        let mut state = self.state.locked();
        let known = state.as_ref().map(|state| state.bandwidth);
        if known == bandwidth {
            return;
        }
        *state = bandwidth.map(|bandwidth| {
            let rate = bandwidth.bytes_per_second();
            State {
                bandwidth,
                // Half a second may be saved up: a disk that is slow for a moment costs nothing.
                bucket: TokenBucket::new(rate, rate / 2),
                counted: Instant::now(),
            }
        });
    }

    /// The bandwidth now; `None`: no limit.
    fn bandwidth(&self) -> Option<Bandwidth> {
        self.state.locked().as_ref().map(|state| state.bandwidth)
    }

    /// Counts bytes that have arrived, and pauses for as long as they may take.
    async fn took(&self, bytes: u64) {
        let pause = {
            let mut state = self.state.locked();
            let Some(state) = state.as_mut() else {
                return;
            };
            let now = Instant::now();
            let passed = now.saturating_duration_since(state.counted);
            state.counted = now;
            state.bucket.take(bytes, passed)
        };
        if pause > Duration::ZERO {
            tokio::time::sleep(pause.min(LONGEST)).await;
        }
    }
}

/// The pulls that wait for a blob while another pull fetches it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    waiters: Mutex<Waiters>,
    joined: Notify,
}

#[derive(Debug, Default)]
struct Waiters {
    next: u64,
    /// Their limits; `None`: no limit.
    paces: BTreeMap<u64, Option<Arc<Pace>>>,
}

/// One of these pulls, for as long as it waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiting: Arc<Waiting>,
    number: u64,
}

impl Waiting {
    /// Adds a pull with this limit on its bandwidth. A pause of the one that fetches ends: it may go faster from now on.
    pub(crate) fn join(self: &Arc<Self>, pace: Option<Arc<Pace>>) -> Waiter {
        let number = {
            let mut waiters = self.waiters.locked();
            let number = waiters.next;
            waiters.next += 1;
            waiters.paces.insert(number, pace);
            number
        };
        self.joined.notify_waiters();
        Waiter {
            waiting: self.clone(),
            number,
        }
    }

    /// Counts bytes that have arrived for the pull that fetches, and pauses for as long as they may take at the bandwidth of the fastest pull.
    pub(super) async fn took(&self, own: &Arc<Pace>, bytes: u64) {
        // Made before the look: a pull that joins after it ends the pause.
        let joined = self.joined.notified();
        let Some(pace) = self.fastest(own) else {
            return;
        };
        tokio::select! {
            () = pace.took(bytes) => {}
            () = joined => {}
        }
    }

    /// The limit of the fastest pull; `None` if one of them has no limit.
    fn fastest(&self, own: &Arc<Pace>) -> Option<Arc<Pace>> {
        let waiters = self.waiters.locked();
        let all = waiters.paces.values().map(Option::as_ref);
        let limited = all.chain([Some(own)]).map(|pace| {
            let pace = pace?;
            Some((pace.bandwidth()?.bytes_per_second(), pace.clone()))
        });
        let limited: Option<Vec<_>> = limited.collect();
        let fastest = limited?.into_iter().max_by_key(|(bandwidth, _)| *bandwidth);
        fastest.map(|(_, pace)| pace)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiting.waiters.locked().paces.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn transfers_that_share_it_stay_below_it_together() {
        let pace = Pace::default();
        let begun = Instant::now();
        pace.took(1 << 30).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        pace.set(Some("1MiB/s".parse().unwrap()));
        let transfer = async || {
            for _ in 0..40 {
                pace.took(64 << 10).await;
            }
        };
        tokio::join!(transfer(), transfer());
        // 5 MiB, of which half a MiB was saved up.
        let took = begun.elapsed();
        let expected = Duration::from_millis(4500);
        assert!(
            took.abs_diff(expected) < Duration::from_millis(50),
            "{took:?}"
        );
    }

    fn limited(bandwidth: &str) -> Arc<Pace> {
        let pace = Pace::default();
        pace.set(Some(bandwidth.parse().unwrap()));
        Arc::new(pace)
    }

    #[tokio::test(start_paused = true)]
    async fn a_blob_comes_at_the_bandwidth_of_the_fastest_that_wants_it() {
        let own = limited("16KiB/s");
        let waiting = Arc::new(Waiting::default());
        let time_of = async |bytes: u64| {
            let begun = Instant::now();
            waiting.took(&own, bytes).await;
            begun.elapsed()
        };
        // What may be saved up.
        assert_eq!(time_of(8 << 10).await, Duration::ZERO);
        assert_eq!(time_of(16 << 10).await, Duration::from_secs(1));
        let slower = waiting.join(Some(own.clone()));
        assert_eq!(time_of(16 << 10).await, Duration::from_secs(1));
        let faster = waiting.join(Some(limited("32KiB/s")));
        assert_eq!(
            time_of((16 << 10) + (32 << 10)).await,
            Duration::from_secs(1)
        );
        for pace in [None, Some(Arc::default())] {
            let unlimited = waiting.join(pace);
            assert_eq!(time_of(1 << 30).await, Duration::ZERO);
            drop(unlimited);
        }
        drop((slower, faster));
        // Half of it was saved up meanwhile.
        assert_eq!(time_of(16 << 10).await, Duration::from_millis(500));
        // One that comes in the middle of a pause ends it.
        let comes = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            waiting.join(None)
        };
        let (took, _waiter) = tokio::join!(time_of(1 << 20), comes);
        assert_eq!(took, Duration::from_secs(2));
    }
}
