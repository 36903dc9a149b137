//! What a command prints, and why it ends early.

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

/// Why a command does not go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// The node refused a call.
    Refused(Status),
    /// The client cannot go on with what it was told.
    Failed(String),
    /// The client takes what is not there.
    Crash(String),
    /// What the test waited for was printed.
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

/// How a step of a command ends.
pub(super) type Step<T = ()> = Result<T, Stop>;

impl Screen {
    /// One on which a command ends that has printed such a line.
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

    /// Prints text whose last line may go on; only whole lines are looked at.
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

    /// A line on standard error.
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

/// What the client dereferences without looking.
pub(super) fn needed<T>(value: Option<T>, what: &str) -> Step<T> {
    value.ok_or_else(|| Stop::Crash(what.to_owned()))
}
