//! An error and what caused it, in one line: what people are shown.

use std::error::Error;

/// The error, and each of its causes behind a colon. What `{:#}` is for an [`anyhow::Error`].
pub fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}
