//! Durations and moments of a rollout, in whole seconds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A duration. Its text is a number with s, m, h or d; a number alone is read as seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u64);

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: expected seconds, or a number with s, m, h or d, such as 30m")]
pub struct NotSeconds(String);

/// The units, the largest first.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

impl FromStr for Seconds {
    type Err = NotSeconds;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let unit = UNITS.into_iter().find(|(unit, _)| text.ends_with(*unit));
            let (digits, factor) = match unit {
                Some((unit, factor)) => (text.strip_suffix(unit)?, factor),
                None => (text, 1),
            };
            let number: u64 = digits.parse().ok()?;
            number.checked_mul(factor).map(Seconds)
        };
        read().ok_or_else(|| NotSeconds(text.chars().take(40).collect()))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &(char, u64)| self.0 > 0 && self.0.is_multiple_of(*factor);
        let (unit, factor) = UNITS.into_iter().find(fits).unwrap_or(('s', 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

instar_values::serde_by_text!(Seconds);

/// A moment by the driver's clock, in seconds since 1970.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment this much later.
    #[must_use]
    pub fn after(self, time: Seconds) -> Self {
        Self(self.0.saturating_add(time.0))
    }

    /// The time since an earlier moment; none if the clock was set back meanwhile.
    pub fn since(self, earlier: Moment) -> Seconds {
        Seconds(self.0.saturating_sub(earlier.0))
    }
}

/// As people read it, in UTC.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.0).ok();
        let date = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        match date {
            Some(date) => write!(f, "{date}"),
            // After the last year that dates have.
            None => write!(f, "{} s after 1970", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_duration_is_its_text() {
        for (text, seconds) in [
            ("90s", 90),
            ("30m", 1800),
            ("1h", 3600),
            ("2d", 172_800),
            ("0s", 0),
        ] {
            let read: Seconds = text.parse().unwrap();
            assert_eq!((read, read.to_string().as_str()), (Seconds(seconds), text));
        }
        assert_eq!("90".parse(), Ok(Seconds(90)));
        for bad in ["", "s", "-1", "-1s", "1.5h", "99999999999999999999d", "3é"] {
            assert!(bad.parse::<Seconds>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_moment_is_a_date_for_people() {
        for (moment, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_764_430_266, "2025-11-29T15:31:06Z"),
            (u64::MAX, "18446744073709551615 s after 1970"),
        ] {
            assert_eq!(Moment(moment).to_string(), text);
        }
    }
}
