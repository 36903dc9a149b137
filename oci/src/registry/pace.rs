//! A limit on the bandwidth of downloads. All transfers that share it stay below it together.

use std::sync::Mutex;
use std::time::Duration;

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

    /// Counts bytes that have arrived, and pauses for as long as they may take.
    pub(super) async fn took(&self, bytes: u64) {
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
}
