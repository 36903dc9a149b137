//! The time since when a condition is true, for conditions whose facts have no time: the first time that the conditions were asked for and it
//! was true.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use super::{Condition, Trouble, Type};
use crate::base::lock::Lock as _;

/// The troubles that were seen last, each with its begin.
#[derive(Debug)]
pub struct FirstSeen {
    begun: Instant,
    seen: Mutex<BTreeMap<Type, (&'static str, SystemTime)>>,
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

    /// Adds the begin of each trouble. A trouble with another reason is another one.
    pub fn note(&self, conditions: Vec<Condition>, now: SystemTime) -> Vec<Known> {
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
                Some((reason, begun)) if *reason == trouble.reason => *begun,
                _ => now,
            };
            seen.insert(kind, (trouble.reason, begun));
            let since = trouble.since.unwrap_or(begun);
            Known {
                kind,
                trouble: Some((trouble, since)),
            }
        });
        known.collect()
    }
}
