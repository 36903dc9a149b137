//! A command's output, and the reasons for its early end.

use std::fmt;

use tonic::Status;

use crate::instarctl::Said;

/// Standard output and error of a command.
#[derive(Debug, Default)]
pub(super) struct Screen {
    output: String,
    complaint: String,
    is_meant: Option<fn(&str) -> bool>,
}

/// The reason for a command's early end.
#[derive(Debug)]
pub(super) enum Stop {
    /// The node refused a call.
    Refused(Status),
    /// The client cannot use an answer.
    Failed(String),
    /// The client dereferences a missing value.
    Crash(String),
    /// The line that the test waited for was printed.
    Seen,
}

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "{:?}: {}", status.code(), status.message()),
            Self::Failed(why) => f.write_str(why),
            Self::Crash(what) => write!(f, "panic: nil pointer: {what}"),
            Self::Seen => f.write_str("ended by hand"),
        }
    }
}

/// The result of a step of a command.
pub(super) type Step<T = ()> = Result<T, Stop>;

impl Screen {
    /// Returns a screen that ends its command after the first line for which `is_meant` is true.
    pub(super) fn until(is_meant: fn(&str) -> bool) -> Self {
        Self {
            is_meant: Some(is_meant),
            ..Self::default()
        }
    }

    /// Prints a line.
    pub(super) fn line(&mut self, text: &str) -> Step {
        self.output.push_str(text);
        self.output.push('\n');
        match self.is_meant {
            Some(is_meant) if is_meant(text) => Err(Stop::Seen),
            _ => Ok(()),
        }
    }

    /// Prints text whose last line may be incomplete; only whole lines are checked.
    pub(super) fn text(&mut self, text: &str) -> Step {
        let begun = self.output.rfind('\n').map_or(0, |end| end + 1);
        self.output.push_str(text);
        let whole = self.output.rfind('\n').unwrap_or(begun);
        let new = self.output.get(begun..whole).unwrap_or_default();
        match self.is_meant {
            Some(is_meant) if new.lines().any(is_meant) => Err(Stop::Seen),
            _ => Ok(()),
        }
    }

    /// Prints a line on standard error.
    pub(super) fn complain(&mut self, text: &str) {
        self.complaint.push_str(text);
        self.complaint.push('\n');
    }

    pub(super) fn said(self, code: Option<i32>) -> Said {
        Said {
            code,
            output: self.output,
            complaint: self.complaint,
        }
    }
}

/// Takes a value that the client dereferences without a check.
pub(super) fn needed<T>(value: Option<T>, what: &str) -> Step<T> {
    value.ok_or_else(|| Stop::Crash(what.to_owned()))
}
