//! init's lines in the kernel log, which the console shows.

use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

static KERNEL_LOG: OnceLock<File> = OnceLock::new();

/// Opens the kernel log. Before that, and if it cannot be opened, lines go to standard error.
pub(crate) fn open() {
    // Otherwise the kernel drops lines when many come within 5 s, machined's too.
    let _ = std::fs::write("/proc/sys/kernel/printk_devkmsg", "on\n");
    if let Ok(file) = File::options().write(true).open("/dev/kmsg") {
        // An error means that it is open already.
        let _ = KERNEL_LOG.set(file);
    }
}

/// Logs a step of init's.
macro_rules! say {
    ($($text:tt)*) => { $crate::console::line(6, format_args!($($text)*)) };
}

/// Logs an error; shown even on a quiet console.
macro_rules! complain {
    ($($text:tt)*) => { $crate::console::line(3, format_args!($($text)*)) };
}

pub(crate) use {complain, say};

/// Writes one line with a syslog priority.
pub(crate) fn line(priority: u8, text: Arguments<'_>) {
    // One record is one write, and the kernel refuses records above 1024 bytes.
    let mut record = format!("<{priority}>init: {text}\n");
    record.truncate(record.floor_char_boundary(1000));
    // If even this fails, no other channel is left.
    let _ = match KERNEL_LOG.get() {
        Some(mut file) => file.write_all(record.as_bytes()),
        None => std::io::stderr().write_all(record.as_bytes()),
    };
}
