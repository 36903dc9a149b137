//! Messages about the driver itself.

/// Prints a message on standard error: standard output is for results.
pub(super) fn note(text: &str) {
    eprintln!("{text}");
}
