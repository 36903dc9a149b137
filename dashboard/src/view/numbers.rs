//! Numbers for people.

use std::time::Duration;

/// A time as a clock that counts days: `3 d 04:05:06`.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60 % 60, seconds / 3600 % 24, seconds / 86400);
    let clock = format!("{hours:02}:{minutes:02}:{:02}", seconds % 60);
    match days {
        0 => clock,
        days => format!("{days} d {clock}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted() {
        assert_eq!(clock(Duration::from_secs(14706)), "04:05:06");
        assert_eq!(clock(Duration::from_secs(3 * 86400 + 5)), "3 d 00:00:05");
    }
}
