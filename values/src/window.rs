//! Time windows: the hours of the week in which a machine may do work that disturbs its users.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;
const WEEK: u64 = 7 * DAY;
/// The first day of the Unix epoch was a Thursday.
const EPOCH_DAY: u64 = 3;

/// A day of the week, Monday first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Weekday(u8);

const NAMES: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The text is not a day of the week.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a day: expected one of Mon, Tue, Wed, Thu, Fri, Sat, Sun")]
pub struct NotADay(String);

impl fmt::Display for Weekday {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.get(usize::from(self.0)).unwrap_or(&"?"))
    }
}

impl FromStr for Weekday {
    type Err = NotADay;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = (0..).zip(NAMES).find(|(_, name)| *name == text);
        let (number, _) = found.ok_or_else(|| NotADay(text.chars().take(40).collect()))?;
        Ok(Weekday(number))
    }
}

/// A time of the day, in seconds since midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeOfDay(u64);

/// The text is not a time of the day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a time of the day: expected something like 02:30")]
pub struct NotATime(String);

impl FromStr for TimeOfDay {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (hours, minutes) = text.split_once(':')?;
            let hours = two_digits(hours).filter(|&hours| hours < 24)?;
            let minutes = two_digits(minutes).filter(|&minutes| minutes < 60)?;
            Some(TimeOfDay((hours * 60 + minutes) * MINUTE))
        };
        read().ok_or_else(|| NotATime(text.chars().take(40).collect()))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.0 / MINUTE;
        write!(f, "{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

fn two_digits(text: &str) -> Option<u64> {
    let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// The distance of local time from UTC, in seconds: `+02:00`, `-03:30`. It is fixed: the machine has no table of summer times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UtcOffset(i64);

/// The text is not a distance from UTC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a distance from UTC: expected something like +02:00; a machine knows no names of time zones"
)]
pub struct NotAnOffset(String);

impl FromStr for UtcOffset {
    type Err = NotAnOffset;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (sign, time) = match text.as_bytes().first()? {
                b'+' => (1, &text[1..]),
                b'-' => (-1, &text[1..]),
                _ => return None,
            };
            let time: TimeOfDay = time.parse().ok()?;
            // The farthest local times are -12:00 and +14:00.
            let seconds = i64::try_from(time.0).ok()?;
            (seconds <= 14 * 3600).then_some(UtcOffset(sign * seconds))
        };
        read().ok_or_else(|| NotAnOffset(text.chars().take(40).collect()))
    }
}

impl fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        write!(f, "{sign}{}", TimeOfDay(self.0.unsigned_abs()))
    }
}

/// A window that opens at the same time of every day, or of some days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    start: TimeOfDay,
    length: Duration,
    /// Sorted; empty: every day.
    days: Vec<Weekday>,
    offset: UtcOffset,
}

/// The window would be open always or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a window is open for a minute to a day")]
pub struct BadLength;

/// The text is not a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a window: expected something like 02:00-05:00, with days in front and the distance from UTC behind if you like, as in \
     \"Sat,Sun 02:00-05:00 +01:00\""
)]
pub struct NotAWindow(pub String);

/// Whether a window is open, and when that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Openness {
    /// It is open for this long.
    Open(Duration),
    /// It opens after this time.
    Opens(Duration),
}

impl Window {
    /// Makes a window; no days means every day.
    ///
    /// # Errors
    /// It is shorter than a minute or longer than a day.
    pub fn new(
        start: TimeOfDay,
        length: Duration,
        mut days: Vec<Weekday>,
        offset: UtcOffset,
    ) -> Result<Self, BadLength> {
        if length < Duration::from_secs(MINUTE) || length > Duration::from_secs(DAY) {
            return Err(BadLength);
        }
        days.sort_unstable();
        days.dedup();
        Ok(Window {
            start,
            length,
            days,
            offset,
        })
    }

    /// Whether its hours are those of another place than UTC.
    pub fn has_offset(&self) -> bool {
        self.offset != UtcOffset::default()
    }

    /// How long it is open.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Whether the window is open at this time. It may reach over midnight into a day that is not listed.
    pub fn at(&self, time: SystemTime) -> Openness {
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let local = since_epoch.as_secs().saturating_add_signed(self.offset.0);
        let now = (local + EPOCH_DAY * DAY) % WEEK;
        // How long ago it opened last, over all days on which it opens.
        let starts = (0..7)
            .filter(|day| self.days.is_empty() || self.days.contains(&Weekday(*day)))
            .map(|day| u64::from(day) * DAY + self.start.0);
        let ages = starts.map(|start| (now + WEEK - start) % WEEK);
        let length = self.length.as_secs();
        let open = ages.clone().filter(|&age| age < length).min();
        match open {
            Some(age) => Openness::Open(Duration::from_secs(length - age)),
            // At least one day is there.
            None => Openness::Opens(Duration::from_secs(WEEK - ages.max().unwrap_or(0))),
        }
    }
}

/// `[DAYS ]START-END[ OFFSET]`. An end that is not after the start is on the next day.
impl FromStr for Window {
    type Err = NotAWindow;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let mut words = text.split(' ').peekable();
            let has_days = words.peek()?.starts_with(|c: char| c.is_ascii_uppercase());
            let days = match has_days {
                true => words.next()?.split(',').map(str::parse).collect(),
                false => Ok(Vec::new()),
            };
            let (start, end) = words.next()?.split_once('-')?;
            let (start, end): (TimeOfDay, TimeOfDay) = (start.parse().ok()?, end.parse().ok()?);
            let offset = words.next().map(str::parse).transpose().ok()?;
            if words.next().is_some() {
                return None;
            }
            let seconds = match (end.0 + DAY - start.0) % DAY {
                0 => DAY,
                seconds => seconds,
            };
            let length = Duration::from_secs(seconds);
            Window::new(start, length, days.ok()?, offset.unwrap_or_default()).ok()
        };
        read().ok_or_else(|| NotAWindow(text.chars().take(60).collect()))
    }
}

/// The form that is parsed. Parts of a minute at the end of the window are left out.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, day) in self.days.iter().enumerate() {
            let end = if index + 1 == self.days.len() {
                ' '
            } else {
                ','
            };
            write!(f, "{day}{end}")?;
        }
        let end = (self.start.0 + self.length.as_secs()) % DAY;
        write!(f, "{}-{}", self.start, TimeOfDay(end))?;
        match self.offset {
            UtcOffset(0) => Ok(()),
            offset => write!(f, " {offset}"),
        }
    }
}

crate::text_form::serde_by_text!(Window);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn window(start: &str, hours: u64, days: &[&str], offset: &str) -> Window {
        let days = days.iter().map(|day| day.parse().unwrap()).collect();
        Window::new(
            start.parse().unwrap(),
            Duration::from_secs(hours * 3600),
            days,
            offset.parse().unwrap(),
        )
        .unwrap()
    }

    /// Thursday, 1 January 1970, and the days after it.
    fn time(day: u64, hours: u64, minutes: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(day * DAY + (hours * 60 + minutes) * MINUTE)
    }

    #[test]
    fn windows_open_and_close() {
        use Openness::{Open, Opens};
        let minutes = |minutes: u64| Duration::from_secs(minutes * MINUTE);
        let daily = window("02:00", 2, &[], "+00:00");
        let over_midnight = window("23:00", 3, &["Thu"], "+00:00");
        let east = window("02:00", 2, &["Fri"], "+02:00");
        let west = window("22:00", 1, &["Wed"], "-03:30");
        let always = window("00:00", 24, &[], "+00:00");
        for (window, at, expected) in [
            (&daily, time(0, 1, 59), Opens(minutes(1))),
            (&daily, time(0, 2, 0), Open(minutes(120))),
            (&daily, time(0, 3, 59), Open(minutes(1))),
            (&daily, time(0, 4, 0), Opens(minutes(22 * 60))),
            (&over_midnight, time(0, 22, 0), Opens(minutes(60))),
            (&over_midnight, time(1, 1, 0), Open(minutes(60))),
            (
                &over_midnight,
                time(1, 2, 0),
                Opens(minutes(6 * 24 * 60 + 21 * 60)),
            ),
            // 00:30 UTC on Friday is 02:30 there.
            (&east, time(1, 0, 30), Open(minutes(90))),
            (&east, time(1, 2, 0), Opens(minutes(7 * 24 * 60 - 120))),
            // 01:30 UTC on Thursday is 22:00 on Wednesday there.
            (&west, time(7, 1, 30), Open(minutes(60))),
            (&always, time(5, 13, 0), Open(minutes(11 * 60))),
        ] {
            assert_eq!(window.at(at), expected, "{window:?} {at:?}");
        }
    }

    #[test]
    fn texts_are_checked() {
        for good in ["00:00", "23:59"] {
            assert_eq!(good.parse::<TimeOfDay>().unwrap().to_string(), good);
        }
        for bad in ["24:00", "2:00", "02:60", "02-00", "+1:00", ""] {
            assert!(bad.parse::<TimeOfDay>().is_err(), "{bad}");
        }
        for bad in ["02:00", "+15:00", "+2", "", "ä02:00"] {
            assert!(bad.parse::<UtcOffset>().is_err(), "{bad}");
        }
        assert!("Monday".parse::<Weekday>().is_err());
        let start = "00:00".parse().unwrap();
        for seconds in [0, 59, DAY + 1] {
            let length = Duration::from_secs(seconds);
            let window = Window::new(start, length, vec![], UtcOffset::default());
            assert_eq!(window, Err(BadLength));
        }
    }

    #[test]
    fn windows_have_a_text() {
        for (text, hours) in [
            ("02:00-05:00", 3),
            ("Sat,Sun 23:00-01:00 -03:30", 2),
            ("Mon 00:00-00:00", 24),
            ("12:00-11:00 +01:00", 23),
        ] {
            let window: Window = text.parse().unwrap();
            assert_eq!(window.to_string(), text);
            assert_eq!(window.length, Duration::from_secs(hours * 3600));
        }
        let days = "Sat,Sun 02:00-04:00 +01:00".parse();
        assert_eq!(days, Ok(window("02:00", 2, &["Sat", "Sun"], "+01:00")));
        for bad in [
            "",
            "02:00",
            "02:00-",
            "2-5",
            "02:00-05:00 ",
            "sat 02:00-05:00",
            "Sat, Sun 02:00-05:00",
            "02:00-05:00 UTC",
            "02:00-05:00 +01:00 Sat",
        ] {
            assert!(bad.parse::<Window>().is_err(), "{bad:?}");
        }
    }
}
