//! The errors of a machine, each with the machine's last output.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::qmp::QmpError;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure. `Display` says the step and the machine's last output; the cause is the source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `INSTAR_ACCEL` has an unknown value.
    #[error("INSTAR_ACCEL is {0:?}: set it to tcg or kvm, or leave it out")]
    UnknownAccel(String),
    /// The program did not start.
    #[error("cannot run {}: install the package qemu-system-x86, or set INSTAR_QEMU", .program.display())]
    NoQemu {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The program is not QEMU.
    #[error("cannot tell the version of {}: it says {text:?}", .program.display())]
    UnknownVersion {
        /// The program.
        program: PathBuf,
        /// The program's output.
        text: String,
    },
    /// The plan contradicts itself.
    #[error("this machine cannot be: {0}")]
    Impossible(String),
    /// A file of the plan is not there.
    #[error("cannot read the {what} {}", .path.display())]
    NoInput {
        /// The file's purpose: kernel, disk, ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An operation on the machine's directory, or on a file in it, failed.
    #[error("cannot {action} {}", .path.display())]
    Directory {
        /// The operation, a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Every port of the range is taken.
    #[error(
        "no free TCP port between {first} and {last} on 127.0.0.1: end what is left of earlier runs"
    )]
    NoPort {
        /// The first one tried.
        first: u16,
        /// The last one tried.
        last: u16,
    },
    /// A guest port that is not forwarded.
    #[error("port {0} of the guest is not forwarded: add it to the plan")]
    NotForwarded(u16),
    /// QEMU's control socket failed.
    #[error("cannot control the machine{evidence}")]
    Qmp {
        /// The machine's last output.
        evidence: Evidence,
        /// The cause.
        source: QmpError,
    },
    /// The machine ended during a wait.
    #[error("the machine ended ({ended}) while waiting for {wanted}{evidence}")]
    EndedEarly {
        /// How it ended.
        ended: Ended,
        /// The event that the wait was for.
        wanted: String,
        /// The machine's last output.
        evidence: Evidence,
    },
    /// The timeout of a wait expired.
    #[error("no {wanted} within {} s{evidence}", .within.as_secs())]
    TooLate {
        /// The event that the wait was for.
        wanted: String,
        /// The timeout.
        within: Duration,
        /// The machine's last output.
        evidence: Evidence,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel panicked while waiting for {wanted}: {line}{evidence}")]
    Panicked {
        /// The event that the wait was for.
        wanted: String,
        /// The console's line with the panic.
        line: String,
        /// The machine's last output.
        evidence: Evidence,
    },
}

impl Error {
    pub(crate) fn directory(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Directory {
            action,
            path,
            source,
        }
    }
}

/// How a machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// QEMU ended by itself: status 0 after a power-off, or after a reboot where that ends QEMU.
    Exited(ExitStatus),
    /// [`crate::Vm`] killed it.
    PowerCut,
    /// The deadline killed it.
    Deadline,
}

impl Ended {
    /// Whether the guest ended the machine in an orderly way.
    pub fn is_clean(self) -> bool {
        matches!(self, Self::Exited(status) if status.success())
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "{status}"),
            Self::PowerCut => f.write_str("power cut"),
            Self::Deadline => f.write_str("killed at its deadline"),
        }
    }
}

/// The machine's last output, and the directory with the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The machine's directory.
    pub directory: PathBuf,
    /// The last lines of the console.
    pub console: String,
    /// The last lines of QEMU's own errors.
    pub qemu: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n  files: {}", self.directory.display())?;
        for (what, text) in [
            ("QEMU said", &self.qemu),
            ("the console's end", &self.console),
        ] {
            if !text.is_empty() {
                write!(f, "\n  {what}:")?;
                for line in text.lines() {
                    write!(f, "\n  | {line}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_ends_with_the_machines_last_words() {
        let evidence = Evidence {
            directory: "/d".into(),
            console: "one\ntwo\n".into(),
            qemu: String::new(),
        };
        let error = Error::TooLate {
            wanted: "line \"up\"".into(),
            within: Duration::from_secs(7),
            evidence,
        };
        assert_eq!(
            error.to_string(),
            "no line \"up\" within 7 s\n  files: /d\n  the console's end:\n  | one\n  | two"
        );
    }
}
