//! The one thing here that Rust cannot check.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// The program dies when the thread that starts it does, so with our process at the latest, however that ends.
pub(crate) fn die_with_starter(command: &mut Command) {
    let starter = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Our process may have died before the call above: then nobody will send that signal.
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
