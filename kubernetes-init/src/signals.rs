//! The signals of PID 1, as events: nothing is done inside a handler.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that have come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Came {
    /// SIGHUP: the plan has changed.
    pub(crate) new_plan: bool,
    /// SIGTERM or SIGINT: everything is to end.
    pub(crate) stop: bool,
}

/// The receiver of signals.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// From now on signals wait until they are taken.
    pub(crate) fn take_over() -> Result<Self> {
        let mut mask = SigSet::empty();
        for signal in [
            Signal::SIGCHLD,
            Signal::SIGHUP,
            Signal::SIGINT,
            Signal::SIGTERM,
        ] {
            mask.add(signal);
        }
        mask.thread_block().context("cannot block signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let receiver = SignalFd::with_flags(&mask, flags).context("cannot receive signals")?;
        Ok(Signals(receiver))
    }

    /// Takes all signals that have come.
    pub(crate) fn take(&self) -> Came {
        let mut came = Came::default();
        // The kernel keeps one of each kind.
        while let Ok(Some(signal)) = self.0.read_signal() {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGHUP) => came.new_plan = true,
                Ok(Signal::SIGINT | Signal::SIGTERM) => came.stop = true,
                _ => {}
            }
        }
        came
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
