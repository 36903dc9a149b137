//! Hours of a policy: a window by a fixed distance from UTC, or by the clocks of a time zone, with their changes in spring and autumn.
//!
//! The decision: the names of time zones are known here, where people's computers and the operator decide, and not to the machines. Their rules
//! change by law, several times a year somewhere: a program that is replaced with ease has them anew, and a machine in the field does not. The
//! table would also take 33 to 49 KB, compressed, of each machine's image, for which 45 KB are left by its promise.
//!
//! A window follows the clock on the wall: it is open while that clock shows an hour of it. Hours that the clock leaves out in spring do not
//! come, and hours that it shows twice in autumn count twice.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instar_values::{NotAWindow, Openness, Window};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The hours and days in which a machine may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours {
    window: Window,
    /// The zone whose clocks count; none if the window has its distance from UTC itself.
    zone: Option<TimeZone>,
}

/// A text that is no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHours {
    /// It has another form.
    #[error(
        "{0}. A name of a time zone may stand for the distance, as in \"02:00-05:00 Europe/Berlin\""
    )]
    Form(NotAWindow),
    /// No time zone has this name.
    #[error("there is no time zone {0:?}: expected a name like Europe/Berlin")]
    Zone(String),
}

/// `[DAYS ]START-END[ OFFSET | ZONE]`.
impl FromStr for Hours {
    type Err = NotHours;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_alphabetic());
        let (window, zone) = match text.rsplit_once(' ') {
            Some((window, name)) if is_name(&name) => (window, Some(name)),
            _ => (text, None),
        };
        let window: Window = window.parse().map_err(NotHours::Form)?;
        if zone.is_some() && window.has_offset() {
            // Both at once: the whole text has no form.
            return Err(NotHours::Form(NotAWindow(text.chars().take(60).collect())));
        }
        let known = |name: &str| {
            TimeZone::get(name).map_err(|_| NotHours::Zone(name.chars().take(40).collect()))
        };
        Ok(Self {
            window,
            zone: zone.map(known).transpose()?,
        })
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.window)?;
        match self.zone.as_ref().and_then(TimeZone::iana_name) {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

instar_values::serde_by_text!(Hours);

impl Hours {
    /// Whether they are open at this time, and when that changes.
    pub(crate) fn at(&self, time: SystemTime) -> Openness {
        // A time that no calendar has is far from any rollout.
        self.zone
            .as_ref()
            .and_then(|zone| self.in_zone(zone, time))
            .unwrap_or_else(|| self.window.at(time))
    }

    fn in_zone(&self, zone: &TimeZone, time: SystemTime) -> Option<Openness> {
        let now = Timestamp::try_from(time).ok()?;
        let at = |moment: Timestamp| {
            let shown = moment.as_second() + i64::from(zone.to_offset(moment).seconds());
            let shown = Duration::from_secs(u64::try_from(shown).ok()?);
            Some(self.window.at(UNIX_EPOCH + shown))
        };
        let openness = at(now)?;
        let is_open = matches!(openness, Openness::Open(_));
        // The distance from UTC of a moment counts until the clocks are set next. What comes after that is asked for anew: the clock may show
        // hours again, or leave hours out.
        let mut change = now.as_second() + seconds(openness)?;
        for set in zone.following(now).map(|set| set.timestamp()) {
            if change < set.as_second() {
                break;
            }
            let after = at(set)?;
            if matches!(after, Openness::Open(_)) != is_open {
                change = set.as_second();
                break;
            }
            change = set.as_second() + seconds(after)?;
        }
        let left = Duration::from_secs(u64::try_from(change - now.as_second()).ok()?);
        Some(match is_open {
            true => Openness::Open(left),
            false => Openness::Opens(left),
        })
    }
}

/// The time until it changes.
fn seconds(openness: Openness) -> Option<i64> {
    let (Openness::Open(left) | Openness::Opens(left)) = openness;
    i64::try_from(left.as_secs()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(time: &str) -> SystemTime {
        time.parse::<Timestamp>().unwrap().into()
    }

    #[test]
    fn a_window_follows_the_clocks_of_its_zone() {
        use Openness::{Open, Opens};
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let hours: Hours = "02:00-05:00 Europe/Berlin".parse().unwrap();
        for (time, expected) in [
            // Winter, one hour before UTC.
            ("2026-01-10T00:59:00Z", Opens(minutes(1))),
            ("2026-01-10T01:00:00Z", Open(minutes(180))),
            // Summer, two hours.
            ("2026-07-10T00:00:00Z", Open(minutes(180))),
            ("2026-07-10T02:59:00Z", Open(minutes(1))),
            // In the night to 29 March 2026, the clock goes from 02:00 to 03:00.
            ("2026-03-29T00:59:00Z", Opens(minutes(1))),
            ("2026-03-29T01:00:00Z", Open(minutes(120))),
            // In the night to 25 October 2026, it goes from 03:00 back to 02:00.
            ("2026-10-25T00:00:00Z", Open(minutes(240))),
            ("2026-10-25T01:30:00Z", Open(minutes(150))),
            // The next opening is after the change.
            ("2026-03-28T04:00:00Z", Opens(minutes(21 * 60))),
        ] {
            assert_eq!(hours.at(at(time)), expected, "{time}");
        }
        let days: Hours = "Sat,Sun 22:00-01:00 America/New_York".parse().unwrap();
        // Saturday, 22:30 there.
        let open = days.at(at("2026-07-12T02:30:00Z"));
        assert_eq!(open, Open(minutes(150)));
    }

    #[test]
    fn an_hour_that_comes_twice_counts_twice_and_one_that_does_not_come_does_not() {
        let within: Hours = "02:30-02:45 Europe/Berlin".parse().unwrap();
        for (time, is_open) in [
            ("2026-10-25T00:40:00Z", true),
            ("2026-10-25T01:00:00Z", false),
            ("2026-10-25T01:40:00Z", true),
            ("2026-03-29T00:59:59Z", false),
            ("2026-03-29T01:00:00Z", false),
            ("2026-03-29T01:40:00Z", false),
        ] {
            let found = within.at(at(time));
            let as_expected = matches!(found, Openness::Open(_)) == is_open;
            assert!(as_expected, "{time}: {found:?}");
        }
    }

    #[test]
    fn the_next_change_is_right_in_the_nights_in_which_clocks_are_set() {
        use Openness::{Open, Opens};
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        for (hours, time, expected) in [
            // It is shown again after the clock was set back.
            ("02:30-02:45", "2026-10-25T00:50:00Z", Opens(minutes(40))),
            // The clock goes back to an hour before the window, and shows the window again.
            ("02:50-03:30", "2026-10-25T00:55:00Z", Open(minutes(5))),
            ("02:50-03:30", "2026-10-25T01:00:00Z", Opens(minutes(50))),
            // The hour in which it would open is left out: it opens on the next day.
            (
                "02:30-02:45",
                "2026-03-29T00:50:00Z",
                Opens(minutes(10 + 23 * 60 + 30)),
            ),
            // It would end in the hour that is left out.
            ("01:30-02:30", "2026-03-29T00:40:00Z", Open(minutes(20))),
            // It would begin there, and ends later.
            ("02:30-03:30", "2026-03-29T00:50:00Z", Opens(minutes(10))),
        ] {
            let read: Hours = format!("{hours} Europe/Berlin").parse().unwrap();
            assert_eq!(read.at(at(time)), expected, "{hours} at {time}");
        }
    }

    #[test]
    fn hours_are_their_text() {
        for text in [
            "02:00-05:00",
            "Sat,Sun 02:00-05:00 +01:00",
            "Mon 00:00-00:00 Europe/Berlin",
            "02:00-05:00 America/Argentina/Buenos_Aires",
        ] {
            assert_eq!(text.parse::<Hours>().unwrap().to_string(), text);
        }
        for (bad, why) in [
            ("02:00-05:00 Europe/Berln", "no time zone \"Europe/Berln\""),
            ("02:00-05:00 Berlin", "no time zone \"Berlin\""),
            ("02:00-05:00 +01:00 Europe/Berlin", "is not a window"),
            ("2-5 Europe/Berlin", "is not a window"),
            ("Sat Europe/Berlin", "is not a window"),
            ("", "is not a window"),
        ] {
            let told = bad.parse::<Hours>().unwrap_err().to_string();
            assert!(told.contains(why), "{bad}: {told}");
        }
    }
}
