//! The signals of PID 1, as events: nothing is done inside a handler.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use instar_sys::signals::{REBOOT, Receiver, receive};
use nix::libc::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// The signals that have come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Came {
    /// SIGHUP: the plan has changed.
    pub(crate) new_plan: bool,
    /// SIGTERM or SIGINT: everything is to end.
    pub(crate) stop: bool,
    /// SIGRTMIN+5: a pod asks for a reboot of the machine, as of systemd.
    pub(crate) reboot: bool,
}

/// The receiver of signals.
#[derive(Debug)]
pub(crate) struct Signals(Receiver);

impl Signals {
    /// From now on signals wait until they are taken.
    pub(crate) fn take_over() -> Result<Self> {
        let signals = [SIGCHLD, SIGHUP, SIGINT, SIGTERM, REBOOT];
        Ok(Signals(
            receive(&signals).context("cannot receive signals")?,
        ))
    }

    /// Takes all signals that have come.
    pub(crate) fn take(&self) -> Came {
        let mut came = Came::default();
        while let Some(signal) = self.0.take() {
            match signal {
                SIGHUP => came.new_plan = true,
                SIGINT | SIGTERM => came.stop = true,
                REBOOT => came.reboot = true,
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
