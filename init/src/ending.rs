//! The end of the kernel, which is also what is left when nothing else helps.

use crate::console::complain;
use rustix::system::{RebootCommand, reboot};
use std::fmt::Display;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Time to read the console before it is gone; and what a disk does not take within this it never will.
const LAST_MOMENTS: Duration = Duration::from_secs(10);

/// Restarts the machine, late enough that the reason can be read.
pub(crate) fn reboot_because(reason: impl Display) -> ! {
    complain!("{reason}; rebooting in {} seconds", LAST_MOMENTS.as_secs());
    // Before the pause, in which nobody feeds a watchdog.
    write_disks();
    sleep(LAST_MOMENTS);
    end_kernel(RebootCommand::Restart)
}

/// Ends the kernel; there is nothing else that PID 1 could do.
pub(crate) fn end_kernel(command: RebootCommand) -> ! {
    write_disks();
    if command != RebootCommand::Halt {
        // Without the thread a driver that hangs keeps the kernel, as it would without these lines.
        let _ = Builder::new().spawn(reset_without_drivers);
    }
    if let Err(error) = reboot(command) {
        complain!("the kernel refuses {command:?}: {error}");
    }
    loop {
        // Without food the watchdog tries, too.
        let _ = reboot(RebootCommand::Restart);
        sleep(LAST_MOMENTS);
    }
}

/// Before it ends the kernel asks its drivers, and one that waits for a device to answer keeps it for ever.
fn reset_without_drivers() {
    sleep(6 * LAST_MOMENTS);
    complain!("the kernel does not end; resetting the machine");
    // It is the last means.
    let _ = std::fs::write("/proc/sysrq-trigger", "b");
}

fn write_disks() {
    let writing = Builder::new().spawn(rustix::fs::sync);
    let begin = Instant::now();
    while writing.as_ref().is_ok_and(|it| !it.is_finished()) && begin.elapsed() < LAST_MOMENTS {
        sleep(Duration::from_millis(5));
    }
}
