//! The terms of a fetch: a window and a bandwidth.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::state::Wait;
use crate::values::{Bandwidth, Openness, Window};

/// When an image may be fetched, and how fast.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Terms {
    /// The hours; `None`: at any time.
    pub window: Option<Window>,
    /// The bandwidth; `None`: all of it.
    pub bandwidth: Option<Bandwidth>,
}

/// The first of the terms that allow a fetch now: for how long, and how fast. Else why not now.
pub fn permit(
    terms: &[Terms],
    now: SystemTime,
    knows_time: bool,
) -> Result<(Duration, Option<Bandwidth>), Wait> {
    let mut opens = None;
    for terms in terms {
        let Some(window) = &terms.window else {
            return Ok((Duration::MAX, terms.bandwidth));
        };
        match window.at(now) {
            Openness::Open(length) if knows_time => return Ok((length, terms.bandwidth)),
            Openness::Open(_) => {}
            Openness::Opens(after) => {
                opens = opens.into_iter().chain([after]).min();
            }
        }
    }
    match opens {
        Some(after) if knows_time => Err(Wait::Window(now + after)),
        _ => Err(Wait::Clock),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_image_is_fetched_on_the_first_terms_that_allow_it() {
        let terms = |window: &str, bandwidth: &str| Terms {
            window: window.parse().ok(),
            bandwidth: bandwidth.parse().ok(),
        };
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let one = SystemTime::UNIX_EPOCH + hours(1);
        let (at_any_time, slowly) = (terms("", ""), "1MiB/s".parse().ok());
        let (early, late) = (
            terms("00:00-03:00", "1MiB/s"),
            terms("04:00-05:00", "9MiB/s"),
        );
        let later = terms("06:00-07:00", "");
        for (terms, knows_time, expected) in [
            (vec![&at_any_time], false, Ok((Duration::MAX, None))),
            (vec![&early], true, Ok((hours(2), slowly))),
            (vec![&late, &early], true, Ok((hours(2), slowly))),
            (vec![&early], false, Err(Wait::Clock)),
            (vec![&late], false, Err(Wait::Clock)),
            (vec![&later, &late], true, Err(Wait::Window(one + hours(3)))),
            (vec![&late, &at_any_time], true, Ok((Duration::MAX, None))),
        ] {
            let terms: Vec<Terms> = terms.into_iter().cloned().collect();
            assert_eq!(permit(&terms, one, knows_time), expected, "{terms:?}");
        }
    }
}
