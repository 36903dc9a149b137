//! The kernel's log for the API: records of /dev/kmsg, one line each.
//!
//! Source of the format: Documentation/ABI/testing/dev-kmsg in the kernel's source.

use std::fmt;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::readiness;

/// Buffer for one record, in bytes. The kernel's largest record (`PRINTK_MESSAGE_MAX`) is 2 KiB; with continuation fields it is
/// still smaller than this.
const LARGEST_RECORD: usize = 8192;

/// Difference of two measurements of the boot's time from which on the clock was set in between. It is not set by less (`time::STEP`).
const CLOCK_WAS_SET: Duration = Duration::from_millis(64);

const FACILITIES: [&str; 12] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp",
];
const PRIORITIES: [&str; 8] = [
    "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug",
];

/// A record of the kernel's log. As text it is one line with its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// syslog's facility, such as `kern`.
    pub facility: &'static str,
    /// syslog's priority, such as `info`.
    pub priority: &'static str,
    /// Its number since the boot of the kernel.
    pub number: u64,
    /// When it was written.
    pub at: jiff::Timestamp,
    /// Its text.
    pub message: String,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record {
            facility,
            priority,
            at,
            message,
            ..
        } = self;
        writeln!(f, "{facility}: {priority:>7}: [{at:.9}]: {message}")
    }
}

/// A reader of the kernel's log.
pub struct KernelLog {
    device: AsyncFd<OwnedFd>,
    /// When the kernel was started, by the clock of now.
    boot: SystemTime,
}

impl KernelLog {
    /// Opens the log at its beginning, or at its end to read new records only.
    pub fn open(only_new: bool) -> anyhow::Result<Self> {
        let mut device = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")
            .context("open /dev/kmsg")?;
        if only_new {
            device.seek(SeekFrom::End(0)).context("seek in /dev/kmsg")?;
        }
        Ok(KernelLog {
            device: readiness::watch(device.into(), Interest::READABLE)?,
            boot: boot_by_clock(),
        })
    }

    /// Returns the next existing record; none at the end of the log.
    pub fn next_kept(&mut self) -> anyhow::Result<Option<Record>> {
        let mut record = [0; LARGEST_RECORD];
        loop {
            match rustix::io::read(self.device.get_ref(), &mut record) {
                Ok(length) => {
                    self.boot = after(self.boot, boot_by_clock());
                    return Ok(parse(&record[..length], self.boot));
                }
                Err(Errno::AGAIN) => return Ok(None),
                // Records were overwritten before they were read; the next read continues with the oldest record.
                Err(Errno::PIPE) => {}
                Err(error) => return Err(error).context("read /dev/kmsg"),
            }
        }
    }

    /// Waits for the next record and returns it.
    pub async fn next(&mut self) -> anyhow::Result<Record> {
        loop {
            if let Some(record) = self.next_kept()? {
                return Ok(record);
            }
            let mut ready = self.device.readable().await.context("wait for /dev/kmsg")?;
            ready.clear_ready();
        }
    }
}

/// When the kernel was started, by the present clock.
fn boot_by_clock() -> SystemTime {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let up = Duration::new(
        up.tv_sec.unsigned_abs(),
        u32::try_from(up.tv_nsec).unwrap_or(0),
    );
    SystemTime::now()
        .checked_sub(up)
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The boot's time after another measurement: the one before, so that records keep their distances, unless the clock was set. A reader that
/// began before a time server answered would tell wrong times for as long as it reads.
fn after(before: SystemTime, now: SystemTime) -> SystemTime {
    let moved = now.duration_since(before);
    let moved = moved.unwrap_or_else(|earlier| earlier.duration());
    match moved < CLOCK_WAS_SET {
        true => before,
        false => now,
    }
}

/// Reads a record; none if it is not a record.
fn parse(record: &[u8], boot: SystemTime) -> Option<Record> {
    let record = String::from_utf8_lossy(record);
    let (prefix, rest) = record.split_once(';')?;
    let mut fields = prefix.split(',');
    let level: usize = fields.next()?.parse().ok()?;
    let number: u64 = fields.next()?.parse().ok()?;
    let micros: u64 = fields.next()?.parse().ok()?;
    let message = rest.lines().next().unwrap_or_default();
    let facility = FACILITIES.get(level >> 3).copied().unwrap_or("local");
    let priority = PRIORITIES[level & 7];
    Some(Record {
        facility,
        priority,
        number,
        at: jiff::Timestamp::try_from(boot + Duration::from_micros(micros)).ok()?,
        message: message.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_a_clock_that_was_set_and_nothing_else() {
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let (little, year) = (
            Duration::from_micros(50),
            Duration::from_secs(365 * 24 * 3600),
        );
        assert_eq!(after(before, before + little), before);
        assert_eq!(after(before, before - little), before);
        assert_eq!(after(before, before + year), before + year);
        assert_eq!(after(before, before - year), before - year);
    }

    #[test]
    fn records_become_lines() {
        let format_record =
            |record: &[u8], boot| parse(record, boot).map(|record| record.to_string());
        let boot = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let record = b"30,12,1500000,-;machined: boot: start\n SUBSYSTEM=x\n";
        assert_eq!(
            format_record(record, boot).as_deref(),
            Some("daemon:    info: [2023-11-14T22:13:21.500000000Z]: machined: boot: start\n")
        );
        assert_eq!(
            format_record(b"6,1,0,-;Linux", boot).as_deref(),
            Some("kern:    info: [2023-11-14T22:13:20.000000000Z]: Linux\n")
        );
        assert_eq!(format_record(b"nonsense", boot), None);
    }
}
