//! The conditions that have a line in the log, so that receivers of logs learn of a trouble without asking.
//!
//! ```text
//!             true: a line with the reason               false at QUIET looks in a row: a line
//!   silent ────────────────────────────────────▶ told ────────────────────────────────────────▶ silent
//!                                                 │ ▲
//!                                                 └─┘ a reason that was not told yet: a line
//! ```
//!
//! A trouble that comes and goes between two looks is one trouble: a disk at its limit does not fill the log, nor does a node whose reason
//! changes to and fro.

use std::collections::BTreeMap;

use super::{Known, Type};

/// Number of looks in a row at which a trouble has to be gone until it is over.
const QUIET: u32 = 3;

/// The conditions that are in the log and not over yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoggedConditions(BTreeMap<Type, Open>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    /// The reasons that were told.
    told: Vec<&'static str>,
    /// Looks in a row at which it was gone.
    quiet: u32,
}

/// A line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// The condition is true, for a reason that was not told yet.
    Begins {
        /// Its type.
        kind: Type,
        /// The reason in one word.
        reason: &'static str,
        /// The trouble, and the action against it.
        message: String,
    },
    /// The condition is false again.
    IsOver(Type),
}

impl LoggedConditions {
    /// Takes the conditions of one look; returns the lines for the log.
    pub fn after(mut self, conditions: &[Known]) -> (Self, Vec<Line>) {
        let lines = conditions
            .iter()
            .filter_map(|condition| self.note(condition))
            .collect();
        (self, lines)
    }

    fn note(&mut self, condition: &Known) -> Option<Line> {
        let kind = condition.kind;
        let Some((trouble, _)) = &condition.trouble else {
            let open = self.0.get_mut(&kind)?;
            open.quiet += 1;
            if open.quiet < QUIET {
                return None;
            }
            self.0.remove(&kind);
            return Some(Line::IsOver(kind));
        };
        let open = self.0.entry(kind).or_insert(Open {
            told: Vec::new(),
            quiet: 0,
        });
        open.quiet = 0;
        let is_told = open.told.contains(&trouble.reason);
        if !is_told {
            open.told.push(trouble.reason);
        }
        (!is_told).then(|| Line::Begins {
            kind,
            reason: trouble.reason,
            message: trouble.message.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::conditions::Trouble;

    /// The condition of one look: a reason, or none if it is false.
    fn look(reason: Option<&'static str>) -> [Known; 1] {
        let trouble = reason.map(|reason| Trouble {
            reason,
            message: format!("{reason}: do this"),
            since: None,
        });
        [Known {
            kind: Type::DiskPressure,
            trouble: trouble.map(|trouble| (trouble, SystemTime::UNIX_EPOCH)),
        }]
    }

    #[test]
    fn a_trouble_is_told_once_and_its_end_when_it_stays_away() {
        let (bytes, files) = (Some("BytesNearlyUsedUp"), Some("FilesNearlyUsedUp"));
        let mut told = LoggedConditions::default();
        for (seen, expected) in [
            (None, None),
            (bytes, Some("begins BytesNearlyUsedUp: do this")),
            (bytes, None),
            (files, Some("begins FilesNearlyUsedUp: do this")),
            // The reason changes to and fro.
            (bytes, None),
            (files, None),
            (None, None),
            (None, None),
            // It was gone for two looks only.
            (files, None),
            (None, None),
            (None, None),
            (None, Some("over")),
            (None, None),
            (files, Some("begins FilesNearlyUsedUp: do this")),
        ] {
            let (after, lines) = told.after(&look(seen));
            told = after;
            let lines: Vec<String> = lines
                .into_iter()
                .map(|line| match line {
                    Line::Begins { message, .. } => format!("begins {message}"),
                    Line::IsOver(_) => "over".to_owned(),
                })
                .collect();
            let expected: Vec<&str> = expected.into_iter().collect();
            assert_eq!(lines, expected, "{seen:?}");
        }
    }
}
