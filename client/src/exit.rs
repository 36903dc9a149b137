//! The end of the program when a command fails: a message on standard error, and an exit code for scripts.

use std::error::Error as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use instar_client::{Failure, FailureKind};
use serde_json::json;

use crate::output::{Output, tell};

/// The exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it failed
  2  wrong usage
  3  the node cannot be reached
  4  not authorized
  5  refused: the node is not in a state for it, or the request is bad
  6  the upgrade was rolled back
  7  timed out
Of several nodes all are asked, and the worst failure counts: 1, then 6, 2, 5, 4, 7, 3.";

/// Reports the failure and returns its exit code.
pub(crate) fn end(failure: &Failure, output: Output, file: Option<&Path>) -> ExitCode {
    if is_closed_output(failure) {
        return ExitCode::SUCCESS;
    }
    if let Some(file) = file
        && let Err(error) = fs::write(file, failure.chain())
    {
        eprintln!("cannot write the reason to {}: {error}", file.display());
    }
    report(failure, output);
    code(failure.kind()).into()
}

fn code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Failed => 1,
        FailureKind::Usage => 2,
        FailureKind::Unreachable => 3,
        FailureKind::NotAuthorized => 4,
        FailureKind::Refused => 5,
        FailureKind::RolledBack => 6,
        FailureKind::TimedOut => 7,
    }
}

/// Whether the reader of our output has closed it, as `head` does: no message is needed then.
pub(crate) fn is_closed_output(failure: &Failure) -> bool {
    failure
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Tells a failure on standard error, with its advice.
pub(crate) fn report(failure: &Failure, output: Output) {
    match output {
        Output::Table => {
            tell(&format!("error: {}", failure.chain()));
            if let Some(advice) = failure.advice() {
                tell(&format!("help: {advice}"));
            }
        }
        // JSON is valid YAML too, and one line of it is easy to tell from other lines on standard error.
        Output::Json | Output::Yaml => eprintln!(
            "{}",
            json!({
                "error": failure.chain(),
                "help": failure.advice(),
                "exit_code": code(failure.kind()),
            })
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_pipe_is_quiet() {
        let failure = |kind: io::ErrorKind| Failure::io("write", kind.into());
        assert!(is_closed_output(&failure(io::ErrorKind::BrokenPipe)));
        assert!(!is_closed_output(&failure(io::ErrorKind::StorageFull)));
    }
}
