//! The one error type: a code for machined and a sentence for people. In PID 1 every error is either sent to machined or printed, so it
//! carries nothing else.

use instar_init_protocol::ErrorCode;
use std::fmt::{self, Display};

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Returns an error with this code and sentence.
macro_rules! fail {
    ($code:ident: $($text:tt)*) => {{
        let (code, text) = (instar_init_protocol::ErrorCode::$code, format!($($text)*));
        Err($crate::failure::Failure { code, text })
    }};
}

pub(crate) use fail;

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Adds the step that failed to an error.
pub(crate) trait Step<T> {
    /// `step` completes "cannot …".
    fn step(self, step: impl Display) -> Result<T>;
}

impl<T, E: Display> Step<T> for Result<T, E> {
    fn step(self, step: impl Display) -> Result<T> {
        self.or_else(|error| fail!(Kernel: "cannot {step}: {error}"))
    }
}
