//! The hardware watchdog: while init's loop runs, the machine is not reset.

use crate::console::say;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// Interval of feeding. Drivers start with timeouts of 10 seconds and more.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

const DEVICE: &str = "/dev/watchdog0";

/// The watchdog, once its driver has made one.
pub(crate) enum Watchdog {
    /// Switched off by a kernel argument.
    Off,
    /// Not there, or not yet.
    Absent,
    /// Running: once the device is open, it has to be fed.
    Fed(File, Instant),
}

impl Watchdog {
    /// Feeds the watchdog when it is due, or looks for one that may have appeared.
    pub(crate) fn feed(&mut self) {
        match self {
            Self::Absent => {
                if let Ok(file) = File::options().write(true).open(DEVICE) {
                    say!("feeding {DEVICE}");
                    *self = Self::Fed(file, Instant::now());
                }
            }
            Self::Fed(file, last) if last.elapsed() >= INTERVAL => {
                // If the write fails, the watchdog resets the machine, which is its purpose.
                let _ = file.write_all(b"\0");
                *last = Instant::now();
            }
            Self::Off | Self::Fed(..) => {}
        }
    }

    /// Stops the watchdog, for a machine that is to halt.
    pub(crate) fn stop(&mut self) {
        if let Self::Fed(file, _) = self {
            // The magic close of the kernel's watchdog-api.
            let _ = file.write_all(b"V");
        }
        *self = Self::Off;
    }
}
