//! When a container reads its plan again that it could not carry out: a read or a mount that failed once may not fail again, and the plan
//! itself, which machined would tell it of, has not changed.

use std::time::{Duration, Instant};

/// The pause before it reads the plan again.
const PAUSE: Duration = Duration::from_secs(30);

/// The last time that it failed.
#[derive(Debug, Default)]
pub(super) struct PlanAgain {
    failed_at: Option<Instant>,
}

impl PlanAgain {
    /// Whether it is time to have the plan read again, of which the container says these errors.
    pub(super) fn is_due(&mut self, errors: &[String], now: Instant) -> bool {
        if errors.is_empty() {
            self.failed_at = None;
            return false;
        }
        let failed_at = *self.failed_at.get_or_insert(now);
        let is_due = now.saturating_duration_since(failed_at) >= PAUSE;
        if is_due {
            self.failed_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_failed_is_read_again_after_each_pause_until_it_is_carried_out() {
        let mut again = PlanAgain::default();
        let error = ["cannot mount the extensions over /usr".to_owned()];
        let begin = Instant::now();
        for (seconds, errors, is_due) in [
            (0, &[][..], false),
            (10, &error, false),
            (39, &error, false),
            (40, &error, true),
            (42, &error, false),
            (70, &error, true),
            (72, &[], false),
            (200, &error, false),
            (230, &error, true),
        ] {
            let now = begin + Duration::from_secs(seconds);
            assert_eq!(again.is_due(errors, now), is_due, "{seconds}");
        }
    }
}
