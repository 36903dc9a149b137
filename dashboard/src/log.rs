//! The last lines of a log, cleaned for the terminal.

use std::collections::VecDeque;
use std::fmt;

/// Limit on the lines kept. More would take memory for lines that are rarely scrolled to; `instarctl logs` shows all.
const LINES: usize = 2000;
/// Limit on the characters kept of a line.
const LINE_LENGTH: usize = 1000;

/// The name of a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogName {
    /// The kernel's log, with the messages of machined and init.
    Kernel,
    /// The log of a service.
    Service(String),
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogName::Kernel => f.write_str("kernel"),
            LogName::Service(id) => f.write_str(id),
        }
    }
}

/// The end of a log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    lines: VecDeque<String>,
}

impl Log {
    /// Adds a line. Characters that would move the cursor or change the terminal are removed.
    pub(crate) fn push(&mut self, line: &str) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(harmless(line));
    }

    /// The lines, oldest first.
    pub(crate) fn lines(&self) -> &VecDeque<String> {
        &self.lines
    }
}

/// Shortens a line of the kernel's log by the parts that take half of a screen's width: facility and date, and an ordinary priority.
///
/// The node sends `daemon:    info: [2023-11-14T22:13:21.500000000Z]: words`. Other lines stay as they are.
pub(crate) fn short_kernel_line(line: &str) -> String {
    let parts = || {
        let (before, rest) = line.split_once(": [")?;
        let (time, words) = rest.split_once("]: ")?;
        let (_, priority) = before.split_once(':')?;
        let clock = time.split_once('T')?.1.get(..12)?;
        let priority = match priority.trim() {
            "emerg" | "alert" | "crit" | "err" | "warning" => format!("{}: ", priority.trim()),
            _ => String::new(),
        };
        Some(format!("{clock} {priority}{words}"))
    };
    parts().unwrap_or_else(|| line.to_owned())
}

/// Replaces tabs by spaces, and removes escape sequences and other control characters.
fn harmless(line: &str) -> String {
    let mut shown = String::new();
    let mut characters = line.chars().peekable();
    let mut length = 0;
    while let Some(character) = characters.next() {
        if length == LINE_LENGTH {
            break;
        }
        match character {
            '\t' => shown.push(' '),
            // A sequence that begins with ESC [ ends with a character from @ to ~ (ECMA-48, 5.4).
            '\u{1b}' if characters.next_if_eq(&'[').is_some() => {
                for part in characters.by_ref() {
                    if ('\u{40}'..='\u{7e}').contains(&part) {
                        break;
                    }
                }
                continue;
            }
            character if character.is_control() => continue,
            character => shown.push(character),
        }
        length += 1;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_cannot_change_the_terminal() {
        assert_eq!(harmless("\u{1b}[31mred\u{1b}[0m\tand\rmore"), "red andmore");
        assert_eq!(harmless("\u{1b}]0;title\u{7}x"), "]0;titlex");
        assert_eq!(harmless("\u{1b}[2"), "");
        assert_eq!(harmless(&"x".repeat(5000)).len(), LINE_LENGTH);
    }

    #[test]
    fn kernel_lines_are_short() {
        for (line, short) in [
            (
                "daemon:    info: [2023-11-14T22:13:21.500000000Z]: machined: [x]: boot",
                "22:13:21.500 machined: [x]: boot",
            ),
            (
                "kern:     err: [2023-11-14T22:13:21.500000000Z]: bad",
                "22:13:21.500 err: bad",
            ),
            ("something else: [x]: y", "something else: [x]: y"),
            ("", ""),
        ] {
            assert_eq!(short_kernel_line(line), short);
        }
    }

    #[test]
    fn old_lines_go() {
        let mut log = Log::default();
        for number in 0..LINES + 5 {
            log.push(&number.to_string());
        }
        assert_eq!(log.lines().len(), LINES);
        assert_eq!(log.lines().front().map(String::as_str), Some("5"));
    }
}
