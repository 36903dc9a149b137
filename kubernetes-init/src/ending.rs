//! The end of everything in the container: all processes are told to end, and those that do not are killed.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitOptions, wait};

use crate::output::say;
use crate::processes::Processes;
use crate::signals::Signals;

/// The time between SIGTERM and the end of this program, with which the kernel kills all that is left.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Ends all processes but this one: those of pods.
pub(crate) fn end_everything(signals: &Signals, processes: &mut Processes) {
    // For PID 1 these are all other processes of the container.
    let all = Pid::from_raw(-1);
    // It fails only if there is no other process.
    let _ = kill(all, Signal::SIGTERM);
    let until = Instant::now() + GRACE;
    while has_processes() {
        if until <= Instant::now() {
            say("some processes have not ended, and are killed");
            break;
        }
        let mut waiting = [PollFd::new(signals, PollFlags::IN)];
        // Whatever it says, everything is looked at.
        let _ = poll(&mut waiting, Timespec::try_from(LOOK).ok().as_ref());
        signals.take();
        processes.listen();
    }
    // As above.
    let _ = kill(all, Signal::SIGKILL);
}

/// Reaps what has ended; whether something is left.
fn has_processes() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
