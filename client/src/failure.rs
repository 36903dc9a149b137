//! What went wrong, what to do next, and the exit code that says so to scripts.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::output::Output;

/// For `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it failed
  2  wrong usage
  3  the node cannot be reached
  4  not authorized
  5  refused: the node is not in a state for it, or the request is bad
  6  the upgrade was rolled back
  7  timed out";

/// Exit codes other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    Unreachable = 3,
    NotAuthorized = 4,
    Refused = 5,
    RolledBack = 6,
    TimedOut = 7,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The end of a command that did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
    advice: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            advice: None,
            source: None,
        }
    }

    /// What to do next.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The cause, shown below the message.
    pub(crate) fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A failure to read or write `what`.
    pub(crate) fn io(what: impl Into<String>, error: io::Error) -> Self {
        Self::new(Exit::Failed, what).because(error)
    }

    /// The reader of our output went away, as `head` does: nobody is left to be told.
    pub(crate) fn is_closed_output(&self) -> bool {
        let source = self
            .source
            .as_deref()
            .and_then(|source| source.downcast_ref::<io::Error>());
        source.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Message and causes, one after the other.
    fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut source: Option<&(dyn Error + 'static)> = self
            .source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static));
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

    /// Tells it on standard error.
    pub(crate) fn report(&self, output: Output) {
        match output {
            Output::Table => {
                eprintln!("error: {}", self.chain());
                if let Some(advice) = &self.advice {
                    eprintln!("help: {advice}");
                }
            }
            // JSON is YAML too, and one line of it can be told from others on standard error.
            Output::Json | Output::Yaml => eprintln!(
                "{}",
                serde_json::json!({
                    "error": self.chain(),
                    "help": self.advice,
                    "exit_code": self.exit as u8,
                })
            ),
        }
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
        let failure = Failure::new(Exit::Failed, "cannot write a").because(
            Failure::new(Exit::Failed, "middle").because(Failure::new(Exit::Failed, "end")),
        );
        assert_eq!(failure.chain(), "cannot write a: middle: end");
    }

    #[test]
    fn only_a_closed_pipe_is_quiet() {
        let failure = |kind: io::ErrorKind| Failure::io("write", kind.into());
        assert!(failure(io::ErrorKind::BrokenPipe).is_closed_output());
        assert!(!failure(io::ErrorKind::StorageFull).is_closed_output());
    }
}
