//! Formats an error and its causes in one line, for people.

use std::error::Error;

/// The error and each of its causes, separated by colons, as `{:#}` prints an [`anyhow::Error`].
pub fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}
