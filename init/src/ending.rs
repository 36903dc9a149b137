//! The end of the kernel, which is also what is left when nothing else helps.

use crate::console::complain;
use rustix::system::{RebootCommand, reboot};
use std::fmt::Display;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Time to read the console before it is gone.
const READING: Duration = Duration::from_secs(10);

/// What is not written by then is for a disk that does not answer, and that must not keep the machine from ending.
const WRITING: Duration = Duration::from_secs(10);

/// Restarts the machine, late enough that the reason can be read.
pub(crate) fn reboot_because(reason: impl Display) -> ! {
    complain!("{reason}; rebooting in {} seconds", READING.as_secs());
    // Before the pause, in which nobody feeds a watchdog.
    write_disks();
    sleep(READING);
    end_kernel(RebootCommand::Restart)
}

/// Ends the kernel; there is nothing else that PID 1 could do.
pub(crate) fn end_kernel(command: RebootCommand) -> ! {
    write_disks();
    if let Err(error) = reboot(command) {
        complain!("the kernel refuses {command:?}: {error}");
    }
    loop {
        // Without food the watchdog tries, too.
        let _ = reboot(RebootCommand::Restart);
        sleep(READING);
    }
}

fn write_disks() {
    let writing = Builder::new().spawn(rustix::fs::sync);
    let begin = Instant::now();
    while writing.as_ref().is_ok_and(|it| !it.is_finished()) && begin.elapsed() < WRITING {
        sleep(Duration::from_millis(5));
    }
}
