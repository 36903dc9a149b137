//! The position of a reader in a log: lines have no numbers, so the newest shown lines are searched in the log when it is read again.

use std::collections::VecDeque;

/// Number of lines to search for, so that a program which writes the same line again and again is followed, too.
const KEPT: usize = 1024;

/// Number of them that a log has to begin with if it has dropped those before: this many in a row hardly occur twice in a log.
pub(crate) const LEAST: u32 = 32;

/// The part of a line by which it is known again.
pub(crate) type Identity = fn(&str) -> &str;

/// The newest lines that were shown, or that are older than the part of the log to show.
#[derive(Debug)]
pub(crate) struct LeftOff {
    newest: VecDeque<String>,
    identity: Identity,
}

impl LeftOff {
    /// No line was shown yet.
    pub(crate) fn new(identity: Identity) -> Self {
        LeftOff {
            newest: VecDeque::new(),
            identity,
        }
    }

    /// Notes a line that was shown, or that is not to be shown.
    pub(crate) fn note(&mut self, line: &str) {
        if self.newest.len() == KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back((self.identity)(line).to_owned());
    }

    /// Whether a log has this line.
    pub(crate) fn log_has(&self, log: &[String], line: &str) -> bool {
        let identity = self.identity;
        log.iter().any(|other| identity(other) == identity(line))
    }

    /// The lines of a log after the last shown ones; all lines if those are not in it, as in a log that began anew.
    pub(crate) fn new_in<'a>(&self, log: &'a [String]) -> &'a [String] {
        let least = (LEAST as usize).min(self.newest.len());
        if least == 0 {
            return log;
        }
        let ends_with_them = |shown: &[String]| {
            let mut pairs = shown.iter().rev().zip(self.newest.iter().rev());
            pairs.all(|(one, other)| (self.identity)(one) == other)
        };
        let mut ends = (least..=log.len()).rev();
        let end = ends.find(|end| log.get(..*end).is_some_and(ends_with_them));
        end.and_then(|end| log.get(end..)).unwrap_or(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|number| format!("line {number}")).collect()
    }

    #[test]
    fn a_line_that_is_written_again_and_again_is_followed() {
        let mut left_off = LeftOff::new(|line| line);
        let mut log = lines(0..5);
        log.resize(105, "tick".to_owned());
        for line in &log {
            left_off.note(line);
        }
        log.resize(112, "tick".to_owned());
        log.push("tock".to_owned());
        assert_eq!(left_off.new_in(&log), &log[105..]);
        assert!(left_off.new_in(&log[..105]).is_empty());
    }

    #[test]
    fn a_line_is_known_again_by_its_identity() {
        let mut left_off = LeftOff::new(|line| line.split_once(' ').map_or("", |(_, rest)| rest));
        left_off.note("1.000 one");
        left_off.note("2.000 two");
        let log = ["1.001 one", "2.001 two", "3.001 three"].map(str::to_owned);
        assert_eq!(left_off.new_in(&log), &log[2..]);
        assert!(left_off.log_has(&log, "1.002 one") && !left_off.log_has(&log, "4.000 four"));
    }

    #[test]
    fn what_was_shown_is_not_new() {
        let mut left_off = LeftOff::new(|line| line);
        assert_eq!(left_off.new_in(&lines(0..3)), lines(0..3));
        for line in lines(0..100) {
            left_off.note(&line);
        }
        assert_eq!(left_off.new_in(&lines(0..103)), lines(100..103));
        // The oldest lines have been dropped from the log.
        assert_eq!(left_off.new_in(&lines(60..103)), lines(100..103));
        assert!(left_off.new_in(&lines(0..100)).is_empty());
        // Another log, though it has some of the lines.
        assert_eq!(left_off.new_in(&lines(95..120)), lines(95..120));
    }
}
