//! The time for which a list is in force.

use std::str::FromStr;
use std::time::Duration;

use instar_channel::{Date, List};

/// The word for a list that stays in force.
const NEVER: &str = "never";

/// The time from the date of a list until it starts no upgrade any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// The list is in force until there is a newer one.
    Unlimited,
    /// The list expires after this time.
    Limited(Duration),
}

impl Lifetime {
    /// The lifetime that a list was made with.
    pub(crate) fn of(list: &List) -> Self {
        let seconds = |expires: Date| expires.seconds().saturating_sub(list.date.seconds());
        list.expires.map_or(Self::Unlimited, |expires| {
            Self::Limited(Duration::from_secs(seconds(expires)))
        })
    }

    /// The date at which a list of this date expires.
    pub(crate) fn expiry(self, date: Date) -> Option<Date> {
        match self {
            Self::Unlimited => None,
            Self::Limited(time) => Some(Date::from_seconds(
                date.seconds().saturating_add(time.as_secs()),
            )),
        }
    }
}

/// The end of a sentence about a list: the date at which it expires, if it does.
pub(crate) fn until(list: &List) -> String {
    let expires = list.expires.map(|date| format!(", expires on {date}"));
    expires.unwrap_or_default()
}

impl FromStr for Lifetime {
    type Err = String;

    /// Reads `never`, or a number with s, m, h or d.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == NEVER {
            return Ok(Self::Unlimited);
        }
        let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
        let read = || {
            let (unit, seconds) = units.into_iter().find(|(unit, _)| text.ends_with(*unit))?;
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            number.checked_mul(seconds).map(Duration::from_secs)
        };
        let wrong =
            || format!("expected a number with s, m, h or d, such as 90d, or the word {NEVER}");
        read().map(Self::Limited).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_lifetime_is_a_time_or_never() {
        let days = |days: u64| Ok(Lifetime::Limited(Duration::from_secs(days * 86_400)));
        assert_eq!("90d".parse(), days(90));
        assert_eq!("never".parse(), Ok(Lifetime::Unlimited));
        for bad in ["90", "", "d", "Never", "-1d"] {
            assert!(bad.parse::<Lifetime>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_lifetime_of_a_list_counts_from_its_date() {
        let mut list = List::first("stable".parse().unwrap(), Date::from_seconds(1000));
        for (expires, lifetime, next) in [
            (None, Lifetime::Unlimited, None),
            (
                Some(1060),
                Lifetime::Limited(Duration::from_secs(60)),
                Some(5060),
            ),
            // The publisher's clock went back when this list was made.
            (Some(900), Lifetime::Limited(Duration::ZERO), Some(5000)),
        ] {
            list.expires = expires.map(Date::from_seconds);
            assert_eq!(Lifetime::of(&list), lifetime);
            let expiry = lifetime.expiry(Date::from_seconds(5000));
            assert_eq!(expiry, next.map(Date::from_seconds));
        }
    }
}
