//! The course of a test through a long list that time may cut short: where it begins, when it is over, and what it left out.

use std::process::Command;
use std::time::Duration;

use crate::workspace::workspace_root;

/// How long a course goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// For this time, whatever was reached by then. It begins at another place for each commit, so that short runs come to
    /// all of the list in time.
    For(Duration),
    /// From the first entry until all had their turn, and at least for the first time; the second one is the limit.
    Whole(Duration, Duration),
}

/// A list's entries by turns, by their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Course {
    entries: usize,
    begin: usize,
    taken: usize,
    length: Length,
}

impl Course {
    /// Plans a course through this many entries; see [`commit_number`].
    pub fn new(entries: usize, length: Length, commit: usize) -> Self {
        let begin = match length {
            Length::For(_) => commit % entries.max(1),
            Length::Whole(..) => 0,
        };
        Course {
            entries,
            begin,
            taken: 0,
            length,
        }
    }

    /// Returns the next entry's number, or none once the course is over.
    pub fn next(&mut self, elapsed: Duration) -> Option<usize> {
        let is_over = match self.length {
            Length::For(time) => elapsed >= time,
            Length::Whole(least, most) => {
                elapsed >= most || elapsed >= least && self.taken >= self.entries
            }
        };
        if is_over || self.entries == 0 {
            return None;
        }
        let next = (self.begin + self.taken) % self.entries;
        self.taken += 1;
        Some(next)
    }

    /// Returns the entries that had no turn.
    pub fn left_out(&self) -> Vec<usize> {
        (self.taken..self.entries)
            .map(|turn| (self.begin + turn) % self.entries)
            .collect()
    }

    /// Whether the course must not leave out anything.
    pub fn is_whole(&self) -> bool {
        matches!(self.length, Length::Whole(..))
    }
}

/// Returns a number that differs from commit to commit; zero without git.
pub fn commit_number() -> usize {
    let told = Command::new("git")
        .args(["rev-parse", "--short=7", "HEAD"])
        .current_dir(workspace_root())
        .output();
    let name = told.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    // git may add digits where seven are ambiguous.
    let number = name.ok().and_then(|name| {
        let seven = name.get(..7)?;
        usize::from_str_radix(seven, 16).ok()
    });
    number.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Takes an entry each minute. Returns the numbers in their order.
    fn walk(course: &mut Course) -> Vec<usize> {
        let mut order = Vec::new();
        while let Some(entry) = course.next(MINUTE * u32::try_from(order.len()).unwrap_or(0)) {
            order.push(entry);
        }
        order
    }

    #[test]
    fn a_course_is_cut_short_or_whole() {
        let whole = |least, most| Length::Whole(MINUTE * least, MINUTE * most);
        let cases: [(Length, usize, &[usize], &[usize]); 6] = [
            (Length::For(MINUTE * 2), 0, &[0, 1], &[2, 3]),
            (Length::For(MINUTE * 2), 7, &[3, 0], &[1, 2]),
            (Length::For(MINUTE * 6), 1, &[1, 2, 3, 0, 1, 2], &[]),
            // The commit does not matter to a whole course.
            (whole(1, 9), 3, &[0, 1, 2, 3], &[]),
            (whole(6, 9), 0, &[0, 1, 2, 3, 0, 1], &[]),
            (whole(1, 3), 0, &[0, 1, 2], &[3]),
        ];
        for (length, commit, order, left_out) in cases {
            let mut course = Course::new(4, length, commit);
            assert_eq!(walk(&mut course), order, "{length:?}");
            assert_eq!(course.left_out(), left_out, "{length:?}");
        }
    }

    #[test]
    fn an_empty_list_has_no_course() {
        let mut course = Course::new(0, Length::For(MINUTE), 5);
        assert_eq!(course.next(Duration::ZERO), None);
        assert!(course.left_out().is_empty());
    }
}
