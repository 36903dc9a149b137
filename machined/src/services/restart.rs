//! Pauses before a service that stopped is started again.

use std::time::Duration;

use crate::base::back_off::BackOff;

const PAUSES: BackOff = BackOff {
    // Short: most services stop because of a dependency that is up a moment later.
    first: Duration::from_millis(500),
    // A broken service costs one start per half minute, and is up within half a minute of its repair.
    longest: Duration::from_secs(30),
};
/// A run of this length counts as a success: the next pause is the first one again.
pub(super) const GOOD_RUN: Duration = Duration::from_secs(60);

/// Doubling pauses between the starts of one service.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    failures: u32,
}

impl Restarts {
    /// Continues with the failures of an earlier machined.
    pub(super) fn after_failures(failures: u32) -> Self {
        Restarts { failures }
    }

    /// Returns the runs in a row that ended too early.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the pause after a run of the given length.
    pub(super) fn after(&mut self, run: Duration) -> Duration {
        if run >= GOOD_RUN {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        PAUSES.after(self.failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_limit_and_start_anew_after_a_good_run() {
        let mut restarts = Restarts::default();
        let short = Duration::from_secs(1);
        let pauses: Vec<u128> = (0..8).map(|_| restarts.after(short).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        for _ in 0..100 {
            assert_eq!(restarts.after(short), PAUSES.longest);
        }
        assert_eq!(restarts.after(GOOD_RUN), PAUSES.first);
    }
}
