//! Failures: an error, its kind, and advice.

use std::error::Error;
use std::fmt;
use std::io;

/// The kind of a failure, by which a program decides, for example `instarctl` its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Any other failure.
    Failed,
    /// The request makes no sense; the node was not asked.
    Usage,
    /// The node cannot be reached.
    Unreachable,
    /// One side does not accept the other's certificate, or the caller's roles are not sufficient.
    NotAuthorized,
    /// The node refuses the request: its state does not allow it, or it is not valid.
    Refused,
    /// An upgrade was rolled back: the earlier version runs again.
    RolledBack,
    /// The action took too long.
    TimedOut,
}

/// An error: the action was not done.
///
/// `Display` shows the message alone; the cause is the error's source. The advice is for people, and speaks of `instarctl` where it
/// names a command or an option.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    advice: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// A failure without advice and cause.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: None,
            source: None,
        }
    }

    /// A failure of `action` on this machine, for example to write a file.
    pub fn io(action: impl Into<String>, error: io::Error) -> Self {
        Self::new(FailureKind::Failed, action).because(error)
    }

    /// Adds advice.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Adds the cause.
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The kind, by which a program decides.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The advice, if there is any.
    pub fn advice(&self) -> Option<&str> {
        self.advice.as_deref()
    }

    /// The message and all causes.
    ///
    /// `instar_base::error_chain` prints each cause, and so some twice: errors of tonic and hyper repeat theirs.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut source = self.source();
        while let Some(error) = source {
            let step = error.to_string();
            // Some libraries repeat their cause.
            if !text.ends_with(&step) {
                text.push_str(": ");
                text.push_str(&step);
            }
            source = error.source();
        }
        text
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_the_message_once() {
        let failed = |message: &str| Failure::new(FailureKind::Failed, message);
        let failure = failed("cannot write a").because(failed("middle").because(failed("end")));
        assert_eq!(failure.chain(), "cannot write a: middle: end");
        let repeated = failed("cannot write a: end").because(failed("end"));
        assert_eq!(repeated.chain(), "cannot write a: end");
    }
}
