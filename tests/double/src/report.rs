//! The lines that the tests look for.

use std::fs::File;
use std::io::Write;

/// Writes a line `double: …` into the kernel log, in order with init's lines. On the console itself the two would cut
/// each other's lines in pieces.
pub(crate) fn line(text: &str) {
    if let Ok(mut log) = File::options().write(true).open("/dev/kmsg") {
        // A test that misses the line reports that.
        let _ = log.write_all(format!("<6>double: {text}\n").as_bytes());
    }
}

macro_rules! report {
    ($($text:tt)*) => { $crate::report::line(&format!($($text)*)) };
}

pub(crate) use report;
