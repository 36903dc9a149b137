//! The time since when a condition is true, for conditions whose facts have no time: the first time that the conditions were asked for and it
//! was true.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use super::{Condition, Trouble, Type};
use crate::base::lock::Lock as _;

/// A clock that moved by more than this was set meanwhile.
const CLOCK_WAS_SET: Duration = Duration::from_secs(60);

/// A moment by the clock, and by the time that machined has run, which no time server sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// By the clock.
    pub at: SystemTime,
    /// By the time that machined has run.
    pub up: Duration,
}

impl Moment {
    /// This moment by the clock of now. A trouble may begin before a time server has set a clock that was years off.
    fn by_clock_of(self, now: Moment) -> SystemTime {
        let passed = now.up.saturating_sub(self.up);
        let by_clock = now.at.checked_sub(passed).unwrap_or(now.at);
        let moved = by_clock.duration_since(self.at);
        let moved = moved.unwrap_or_else(|earlier| earlier.duration());
        match moved < CLOCK_WAS_SET {
            true => self.at,
            false => by_clock,
        }
    }
}

/// The troubles that were seen last, each with its begin.
#[derive(Debug)]
pub struct FirstSeen {
    begun: Instant,
    seen: Mutex<BTreeMap<Type, (&'static str, Moment)>>,
}

/// A condition whose begin is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its type.
    pub kind: Type,
    /// Why it is true, and since when.
    pub trouble: Option<(Trouble, SystemTime)>,
}

impl Default for FirstSeen {
    fn default() -> Self {
        FirstSeen {
            begun: Instant::now(),
            seen: Mutex::default(),
        }
    }
}

impl FirstSeen {
    /// How long machined has run.
    pub fn up_for(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        Moment {
            at: SystemTime::now(),
            up: self.up_for(),
        }
    }

    /// Adds the begin of each trouble. A trouble with another reason is another one.
    pub fn note(&self, conditions: Vec<Condition>, now: Moment) -> Vec<Known> {
        let mut seen = self.seen.locked();
        let known = conditions.into_iter().map(|Condition { kind, trouble }| {
            let Some(trouble) = trouble else {
                seen.remove(&kind);
                return Known {
                    kind,
                    trouble: None,
                };
            };
            let begun = match seen.get(&kind) {
                Some((reason, begun)) if *reason == trouble.reason => Moment {
                    at: begun.by_clock_of(now),
                    ..*begun
                },
                _ => now,
            };
            seen.insert(kind, (trouble.reason, begun));
            let since = trouble.since.unwrap_or(begun.at);
            Known {
                kind,
                trouble: Some((trouble, since)),
            }
        });
        known.collect()
    }
}
