//! A token bucket: how long to wait so that the mean rate of something stays below a limit.
//!
//! It is a value without a clock: the caller says how much time has passed.
//!
//! ```text
//!            time passes: more tokens, up to the size of the bucket
//!                 │
//!   tokens ───────┴──────► take(n): n tokens less, perhaps less than none ──► pause until there are none again
//! ```
//!
//! A piece is taken whole and paid for by a pause after it. Waiting before it until there are enough tokens was the other choice: a piece
//! that is larger than the bucket would wait for ever.

use std::time::Duration;

const NANOSECONDS: i128 = 1_000_000_000;

/// Tokens that come at a rate, and may be saved up to a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenBucket {
    /// Tokens per second.
    rate: u64,
    /// Tokens that can be saved.
    size: u64,
    /// Billionths of tokens; less than none after a piece that was larger.
    level: i128,
}

impl TokenBucket {
    /// A full bucket. A rate of 0 counts as 1.
    pub(super) fn new(rate: u64, size: u64) -> Self {
        TokenBucket {
            rate: rate.max(1),
            size,
            level: i128::from(size) * NANOSECONDS,
        }
    }

    /// Takes tokens after this much time since the last call; returns the pause before the next call.
    pub(super) fn take(&mut self, tokens: u64, passed: Duration) -> Duration {
        let rate = i128::from(self.rate);
        // A machine that slept for years: more than fits in no bucket.
        let passed = i128::try_from(passed.as_nanos()).unwrap_or(i128::from(u64::MAX));
        let full = i128::from(self.size) * NANOSECONDS;
        let level = self.level.saturating_add(passed.saturating_mul(rate));
        self.level = level.min(full) - i128::from(tokens) * NANOSECONDS;
        match self.level {
            0.. => Duration::ZERO,
            below => {
                let nanoseconds = (-below + rate - 1) / rate;
                Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_rate_stays_below_the_limit() {
        let milliseconds = Duration::from_millis;
        // A rate of 1000 per second, and 500 of them can be saved: (tokens, time since the last call, pause).
        let mut bucket = TokenBucket::new(1000, 500);
        for (tokens, passed, pause) in [
            // What was saved costs nothing.
            (500, 0, 0),
            // From then on each token costs its time.
            (100, 0, 100),
            (100, 100, 100),
            // A pause that was too short is made up for.
            (100, 50, 150),
            // One that was longer is saved.
            (100, 250, 0),
            // But never more than the bucket holds.
            (600, 3_600_000, 100),
            // A piece that is larger than the bucket passes, and is paid for.
            (5000, 100, 5000),
            (0, 5000, 0),
        ] {
            let paused = bucket.take(tokens, milliseconds(passed));
            assert_eq!(paused, milliseconds(pause), "{tokens} after {passed} ms");
        }
    }

    #[test]
    fn nothing_overflows() {
        let mut bucket = TokenBucket::new(0, 0);
        let longest = bucket.take(u64::MAX, Duration::ZERO);
        assert_eq!(longest, Duration::from_nanos(u64::MAX));
        assert_eq!(bucket.take(0, Duration::MAX), Duration::ZERO);
        let mut fast = TokenBucket::new(u64::MAX, u64::MAX);
        assert_eq!(fast.take(u64::MAX, Duration::MAX), Duration::ZERO);
    }
}
