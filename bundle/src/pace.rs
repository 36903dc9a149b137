//! The lowest speed at which a bundle is read: a device that gives its bytes one by one must not keep its reader, and all bundles after it,
//! waiting for weeks.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use instar_base::lock::Lock as _;

/// This many bytes have to come at least ...
const LEAST: u64 = 1 << 20;
/// ... in this time, of which only reading counts.
const WINDOW: Duration = Duration::from_secs(60);
/// A read counts as this many bytes at least, as disks give no less: many small files are no slow device.
const PAGE: u64 = 4 << 10;

/// The pace of the reads of one bundle; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    window: Arc<Mutex<Window>>,
}

/// The bytes that were read since the last look at the speed.
#[derive(Debug, Default)]
struct Window {
    bytes: u64,
    time: Duration,
}

impl Pace {
    /// Reads, and fails if reads have been too slow for a while. `read` returns the number of bytes.
    pub(crate) fn of(&self, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let began = Instant::now();
        let count = read()?;
        self.window.locked().took(count, began.elapsed())?;
        Ok(count)
    }
}

impl Window {
    fn took(&mut self, bytes: usize, time: Duration) -> io::Result<()> {
        self.bytes += (bytes as u64).max(PAGE);
        self.time += time;
        if self.time < WINDOW {
            return Ok(());
        }
        let window = std::mem::take(self);
        if window.bytes >= LEAST {
            return Ok(());
        }
        let (bytes, seconds) = (window.bytes, window.time.as_secs());
        let what = format!(
            "it is too slow: at most {bytes} bytes came within {seconds} s of reading, and {LEAST} have to come in {} s; use another \
             stick or port",
            WINDOW.as_secs()
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_stays_slow_for_a_minute_is_given_up() {
        let piece = 64 << 10;
        for (what, bytes, milliseconds, reads, is_read) in [
            ("a slow stick", piece, 1000, 10_000, true),
            ("the slowest that is read", piece, 3750, 10_000, true),
            ("a byte each second", 1, 1000, 59, true),
            ("it never ends", 1, 1000, 60, false),
            ("small files", 100, 200, 10_000, true),
            ("one long pause", piece, 61_000, 1, false),
        ] {
            let mut window = Window::default();
            let time = Duration::from_millis(milliseconds);
            let all = (0..reads).try_for_each(|_| window.took(bytes, time));
            assert_eq!(all.is_ok(), is_read, "{what}: {all:?}");
        }
    }
}
