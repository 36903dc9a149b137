//! Pauses between attempts: each is twice as long as the one before it, up to a limit.

use std::time::Duration;

/// The pauses after failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOff {
    /// The pause after the first failure.
    pub first: Duration,
    /// Limit on a pause.
    pub longest: Duration,
}

impl BackOff {
    /// The pause after this many failures in a row, from 1.
    pub fn after(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1));
        self.first
            .saturating_mul(doubled.unwrap_or(u32::MAX))
            .min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let seconds = Duration::from_secs;
        let back_off = BackOff {
            first: seconds(1),
            longest: seconds(5),
        };
        let pauses = [0, 1, 2, 3, 4, 32, 33, u32::MAX].map(|failures| back_off.after(failures));
        assert_eq!(pauses, [1, 1, 2, 4, 5, 5, 5, 5].map(seconds));
    }
}
