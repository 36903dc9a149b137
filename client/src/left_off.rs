//! The position of a reader in a log: lines have no numbers, so the newest shown lines are searched in the log when it is read again.

use std::collections::VecDeque;

/// Number of lines to search for: this many in a row hardly occur twice in a log.
const KEPT: usize = 32;

/// The newest lines that were shown.
#[derive(Debug, Default)]
pub(crate) struct LeftOff {
    newest: VecDeque<String>,
}

impl LeftOff {
    /// Notes a line that was shown.
    pub(crate) fn note(&mut self, line: &str) {
        if self.newest.len() == KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back(line.to_owned());
    }

    /// The lines of a log after the last shown ones; all lines if those are not in it, as in a log that began anew.
    pub(crate) fn new_in<'a>(&self, log: &'a [String]) -> &'a [String] {
        let length = self.newest.len();
        if length == 0 {
            return log;
        }
        let is_there = |part: &[String]| part.iter().eq(&self.newest);
        let at = log.windows(length).rposition(is_there);
        at.and_then(|at| log.get(at + length..)).unwrap_or(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|number| format!("line {number}")).collect()
    }

    #[test]
    fn what_was_shown_is_not_new() {
        let mut left_off = LeftOff::default();
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
