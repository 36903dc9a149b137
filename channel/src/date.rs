//! Moments in whole seconds.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// A moment in whole seconds; its text is that of RFC 3339 in UTC, such as `2026-11-26T19:00:00Z`, and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(Timestamp);

/// The text is not a date.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a date: expected something like 2026-11-26T19:00:00Z")]
pub struct NotADate(String);

impl Date {
    /// The moment this many seconds after 1970 began; the last one that a date can be if it is later than that.
    #[must_use]
    pub fn from_seconds(seconds: u64) -> Self {
        let read = i64::try_from(seconds).ok().map(Timestamp::from_second);
        Date(read.and_then(Result::ok).unwrap_or(Timestamp::MAX))
    }

    /// Seconds since 1970 began; 0 for earlier moments.
    #[must_use]
    pub fn seconds(self) -> u64 {
        u64::try_from(self.0.as_second()).unwrap_or(0)
    }

    /// The moment of a text in any form of RFC 3339, as dates of images have it; parts of a second are left out.
    ///
    /// # Errors
    /// It is no date.
    pub fn lenient(text: &str) -> Result<Self, NotADate> {
        let wrong = || NotADate(text.chars().take(40).collect());
        let timestamp: Timestamp = text.parse().map_err(|_| wrong())?;
        Timestamp::from_second(timestamp.as_second())
            .map(Date)
            .map_err(|_| wrong())
    }
}

impl FromStr for Date {
    type Err = NotADate;

    fn from_str(text: &str) -> Result<Self, NotADate> {
        let date = Date::lenient(text)?;
        match date.to_string() == text {
            true => Ok(date),
            false => Err(NotADate(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

instar_values::serde_by_text!(Date);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_moment_has_one_text() {
        let text = "2026-11-26T19:00:00Z";
        let date: Date = text.parse().unwrap();
        assert_eq!(date.to_string(), text);
        assert_eq!(Date::from_seconds(date.seconds()), date);
        for same in ["2026-11-26T20:00:00+01:00", "2026-11-26T19:00:00.5Z"] {
            assert!(same.parse::<Date>().is_err(), "{same}");
            assert_eq!(Date::lenient(same), Ok(date));
        }
        for bad in ["", "2026-11-26", "now"] {
            assert!(Date::lenient(bad).is_err(), "{bad}");
        }
        assert!(Date::from_seconds(u64::MAX) > date);
    }
}
