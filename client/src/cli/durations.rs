//! Durations as arguments.

use std::time::Duration;

/// Parses a duration: seconds, or a number with s, m or h.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        unit => return Err(format!("unknown unit {unit:?}; use s, m or h")),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number".to_owned())?;
    match number.checked_mul(unit) {
        Some(seconds @ 1..=31_536_000) => Ok(Duration::from_secs(seconds)),
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
        for bad in ["", "m", "0", "-1", "5d", "1.5h", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
