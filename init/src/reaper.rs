//! The one place that waits for processes: every orphan of the machine ends up with PID 1.

use crate::failure::{Result, Step};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Wakes init up when a child ends.
pub(crate) struct Reaper {
    signals: SignalFd,
}

/// What waiting found.
pub(crate) enum Reaped {
    /// A process ended.
    Exit(Pid, WaitStatus),
    /// Children live.
    NothingYet,
    /// There is no child; as every process descends from init, none at all.
    NobodyLeft,
}

impl Reaper {
    /// Must be the first to wait.
    pub(crate) fn new() -> Result<Self> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block().step("block SIGCHLD")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&mask, flags).step("open a signalfd")?;
        Ok(Self { signals })
    }

    /// Waits until a child ends, the other descriptor can be read, or the time is over.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, timeout: Duration) {
        let mut waiting = vec![PollFd::new(&self.signals, PollFlags::IN)];
        waiting.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Interrupted or not: the callers look at everything anyway.
        let _ = poll(&mut waiting, Some(&timeout));
        while let Ok(Some(_)) = self.signals.read_signal() {}
    }

    /// Reaps one process.
    pub(crate) fn reap(&self) -> Reaped {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => Reaped::Exit(pid, status),
            Ok(None) => Reaped::NothingYet,
            Err(_) => Reaped::NobodyLeft,
        }
    }
}

/// How a process ended, as the rest of a sentence.
pub(crate) fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        _ => format!("ended with status {:#x}", status.as_raw()),
    }
}
