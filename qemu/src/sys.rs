//! The one unsafe part of this crate.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Kills the program when the thread that starts it ends, so at the latest with this process, however that ends.
pub(crate) fn die_with_starter(command: &mut Command) {
    let starter = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // This process may have died before the call above: then the kernel will not send the signal.
        if getppid() != Some(starter) {
            return Err(io::Error::from_raw_os_error(
                rustix::io::Errno::SRCH.raw_os_error(),
            ));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}
