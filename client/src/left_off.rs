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
    /// How many lines the whole log had up to the last of them; none if the reader began in its middle. The log may have dropped some since, and has
    /// no more than these before its new ones.
    place: Option<usize>,
    identity: Identity,
}

impl LeftOff {
    /// No line was shown yet, and the first one will be the log's first one.
    pub(crate) fn new(identity: Identity) -> Self {
        LeftOff {
            newest: VecDeque::new(),
            place: Some(0),
            identity,
        }
    }

    /// The next lines are of a log's end: how many are before them is not known.
    pub(crate) fn begin_in_the_middle(&mut self) {
        self.place = None;
    }

    /// Notes a line that was shown, or that is not to be shown.
    pub(crate) fn note(&mut self, line: &str) {
        if self.newest.len() == KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back((self.identity)(line).to_owned());
        self.place = self.place.map(|place| place + 1);
    }

    /// Whether a log has this line.
    pub(crate) fn log_has(&self, log: &[String], line: &str) -> bool {
        let identity = self.identity;
        log.iter().any(|other| identity(other) == identity(line))
    }

    /// The lines of a whole log after the last shown ones; all lines if those are not in it, as in a log that began anew. The caller notes them.
    pub(crate) fn new_in<'a>(&mut self, log: &'a [String]) -> &'a [String] {
        let end = self.end_in(log).unwrap_or(0);
        self.place = Some(end);
        log.get(end..).unwrap_or_default()
    }

    /// The place in a log after the last shown lines. A program that repeats itself for longer than [`KEPT`] has them in many places: the last one
    /// that is no further than they can be is theirs, unless the log has dropped lines. Later ones would pass over lines that were never shown.
    fn end_in(&self, log: &[String]) -> Option<usize> {
        let least = (LEAST as usize).min(self.newest.len());
        if least == 0 {
            return None;
        }
        let ends_with_them = |end: &usize| {
            let mut pairs = log.iter().take(*end).rev().zip(self.newest.iter().rev());
            pairs.all(|(one, other)| (self.identity)(one) == other)
        };
        let most = self.place.unwrap_or(log.len()).min(log.len());
        let expected = (least..=most).rev().find(ends_with_them);
        // Older lines may have come in front of them.
        expected.or_else(|| (most.max(least)..=log.len()).find(ends_with_them))
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
        left_off.begin_in_the_middle();
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

    /// More equal lines than are kept.
    #[test]
    fn lines_after_a_long_repetition_are_not_lost() {
        let mut log = vec!["tick".to_owned(); KEPT + 1];
        let mut left_off = LeftOff::new(|line| line);
        for line in &log {
            left_off.note(line);
        }
        log.resize(KEPT + 501, "tick".to_owned());
        for line in left_off.new_in(&log).to_owned() {
            left_off.note(&line);
        }
        // The same once it was read anew, and nothing is shown twice.
        assert!(left_off.new_in(&log).is_empty());
        log.push("tick".to_owned());
        assert_eq!(left_off.new_in(&log).len(), 1);

        let mut first = LeftOff::new(|line| line);
        for line in &log[..KEPT + 1] {
            first.note(line);
        }
        assert_eq!(first.new_in(&log).len(), 501);
        // Whoever began in the middle knows no place: the limit that is left.
        let mut tail = LeftOff::new(|line| line);
        tail.begin_in_the_middle();
        for line in &log[..KEPT + 1] {
            tail.note(line);
        }
        assert!(tail.new_in(&log).is_empty());
    }

    #[test]
    fn older_lines_may_come_before_those_that_were_shown() {
        let mut left_off = LeftOff::new(|line| line);
        for line in lines(50..100) {
            left_off.note(&line);
        }
        assert_eq!(left_off.new_in(&lines(0..103)), lines(100..103));
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
