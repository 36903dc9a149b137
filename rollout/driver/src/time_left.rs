//! The time that an order has.

use std::time::Duration;

use instar_rollout::{MachineName, Moment, Record};

/// The longest time of an order. A policy may name a longer patience than a clock can count.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The time that is left for a machine's action. The record counts from when it was asked first, however often it is asked, and by whom: an order
/// that goes on after that would change a machine whose rollout has counted it as failed.
pub fn time_left(record: &Record, name: &MachineName, now: Moment) -> Duration {
    let patience = record.patience_of(name);
    let entry = record.machines.get(name);
    let since = entry.and_then(|entry| entry.step.since());
    let left = since.map_or(patience, |since| since.after(patience).since(now));
    // A clock that was set back meanwhile gives no more time.
    Duration::from_secs(left.min(patience).0).min(LONGEST)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Action, Facts, Member, Policy, Release, Seconds};
    use tokio::time::Instant;

    use super::*;

    /// What is left after each of these times.
    fn left(patience: Seconds, after: &[i64]) -> Vec<u64> {
        let target = Release {
            version: "v2".to_owned(),
            digest: None,
            image: None,
        };
        let policy = Policy {
            patience,
            ..Policy::default()
        };
        let name = MachineName::from("n1");
        let members = [(name.clone(), Member::default())];
        let mut record = Record::begin(target, vec![policy], members.into()).unwrap();
        let (began, action) = (1_000_000, Action::Switch(name.clone()));
        let left = [0].iter().chain(after).map(|after| {
            let now = Moment(u64::try_from(began + after).unwrap());
            // The driver notes each order that it gives.
            record.intend(&action, &Facts::new(), now);
            time_left(&record, &name, now).as_secs()
        });
        left.skip(1).collect()
    }

    #[test]
    fn an_order_that_is_given_again_has_what_is_left_of_the_first_ones_time() {
        let left = left(Seconds(1800), &[0, 600, 1800, 1801, -60]);
        assert_eq!(left, [1800, 1200, 0, 0, 1800]);
    }

    #[test]
    fn a_patience_that_no_clock_can_count_is_a_year() {
        let left = left(Seconds(u64::MAX), &[0]);
        assert_eq!(left, [LONGEST.as_secs()]);
        assert!(Instant::now().checked_add(LONGEST).is_some());
    }
}
