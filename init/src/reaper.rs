//! The one place that waits for processes: every orphan of the machine ends up with PID 1.

use crate::failure::{Result, Step};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait, waitpid};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Processes that were reaped, and how they ended.
pub(crate) type Exits = Vec<(Pid, WaitStatus)>;

/// Wakes init up when a child ends.
pub(crate) struct Reaper(SignalFd);

impl Reaper {
    /// Makes a reaper. It must be the only caller of wait from then on.
    pub(crate) fn new() -> Result<Self> {
        let mask = SigSet::from(Signal::SIGCHLD);
        mask.thread_block().step("block SIGCHLD")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&mask, flags).step("open a signalfd")?;
        Ok(Self(signals))
    }

    /// Waits until a child ends, the other descriptor can be read, or the time is over.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, timeout: Duration) {
        let mut waiting = vec![PollFd::new(&self.0, PollFlags::IN)];
        waiting.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).ok();
        // The result does not matter: the callers check everything anyway.
        let _ = poll(&mut waiting, timeout.as_ref());
        while let Ok(Some(_)) = self.0.read_signal() {}
    }
}

/// Reaps one process, `first` before all others. `None`: all live. An error: no process is left at all, as every process descends from
/// init.
pub(crate) fn reap(first: Option<Pid>) -> rustix::io::Result<Option<(Pid, WaitStatus)>> {
    if let Some(first) = first
        && let Ok(Some(reaped)) = waitpid(Some(first), WaitOptions::NOHANG)
    {
        return Ok(Some(reaped));
    }
    wait(WaitOptions::NOHANG)
}

/// How a process ended, as the rest of a sentence.
pub(crate) fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        _ => format!("ended with status {:#x}", status.as_raw()),
    }
}
