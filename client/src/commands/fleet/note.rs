//! Messages about the driver itself.

use crate::output::tell;

/// Prints a message on standard error: standard output is for results.
pub(super) fn note(text: &str) {
    tell(text);
}
