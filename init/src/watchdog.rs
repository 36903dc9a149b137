//! The hardware watchdog: as long as init's loop turns, the machine is not reset.

use crate::console::say;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// Drivers start with time-outs of 10 seconds and more.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

const DEVICE: &str = "/dev/watchdog0";

/// The watchdog, once its driver has brought one.
pub(crate) enum Watchdog {
    /// Switched off by a kernel argument.
    Off,
    /// Not there, or not yet.
    Absent,
    /// Running: from the moment that the device is opened, it wants to be fed.
    Fed(File, Instant),
}

impl Watchdog {
    /// Feeds it when it is time to, and looks for one that may have appeared.
    pub(crate) fn feed(&mut self) {
        match self {
            Self::Absent => {
                if let Ok(file) = File::options().write(true).open(DEVICE) {
                    say!("feeding {DEVICE}");
                    *self = Self::Fed(file, Instant::now());
                }
            }
            Self::Fed(file, last) if last.elapsed() >= INTERVAL => {
                // A device that takes no food resets the machine, which is what it is for.
                let _ = file.write_all(b"\0");
                *last = Instant::now();
            }
            Self::Off | Self::Fed(..) => {}
        }
    }

    /// Stops it, for a machine that is to stand still.
    pub(crate) fn stop(&mut self) {
        if let Self::Fed(file, _) = self {
            // The magic close of the kernel's watchdog-api.
            let _ = file.write_all(b"V");
        }
        *self = Self::Off;
    }
}
