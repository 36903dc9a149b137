//! Ends the kernel, which is also the last resort for every failure.

use crate::console::complain;
use rustix::system::{RebootCommand, reboot};
use std::fmt::Display;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Time to read the console before the reboot, and timeout for writing to disks: a disk that has not taken its data by then never will.
const LAST_MOMENTS: Duration = Duration::from_secs(10);

/// Restarts the machine, after a pause in which the reason can be read.
pub(crate) fn reboot_because(reason: impl Display) -> ! {
    complain!("{reason}; rebooting in {} seconds", LAST_MOMENTS.as_secs());
    // Before the pause, in which the watchdog is not fed and may reset the machine.
    write_disks();
    sleep(LAST_MOMENTS);
    end_kernel(RebootCommand::Restart)
}

/// Ends the kernel: reboot, power off, halt or kexec.
pub(crate) fn end_kernel(command: RebootCommand) -> ! {
    write_disks();
    if command != RebootCommand::Halt {
        // If the thread cannot start, a driver that hangs blocks the reboot, as it would without this line.
        let _ = Builder::new().spawn(reset_without_drivers);
    }
    if let Err(error) = reboot(command) {
        complain!("the kernel refuses {command:?}: {error}");
    }
    loop {
        // The watchdog is no longer fed, so it will reset the machine, too.
        let _ = reboot(RebootCommand::Restart);
        sleep(LAST_MOMENTS);
    }
}

/// Resets the machine if a driver hangs: the kernel asks its drivers before it ends, and one that waits for its device blocks it for ever.
fn reset_without_drivers() {
    sleep(6 * LAST_MOMENTS);
    complain!("the kernel does not end; resetting the machine");
    // No other way is left if this fails.
    let _ = std::fs::write("/proc/sysrq-trigger", "b");
}

fn write_disks() {
    let writing = Builder::new().spawn(rustix::fs::sync);
    let begin = Instant::now();
    while writing.as_ref().is_ok_and(|it| !it.is_finished()) && begin.elapsed() < LAST_MOMENTS {
        sleep(Duration::from_millis(5));
    }
}
