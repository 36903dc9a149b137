//! Durations as arguments.

use std::time::Duration;

use instar_rollout::{NotSeconds, Seconds};

/// Parses a duration as the engine of rollouts does: seconds, or a number with s, m, h or d.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<Seconds, NotSeconds> = text.parse();
    match parsed.map_err(|error| error.to_string())? {
        Seconds(seconds @ 1..=31_536_000) => Ok(Duration::from_secs(seconds)),
        _ => Err("must be between a second and a year".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("30m"), Ok(Duration::from_secs(1800)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("1d"), Ok(Duration::from_secs(86_400)));
        for bad in ["", "m", "0", "-1", "367d", "1.5h", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
