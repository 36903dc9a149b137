//! All unsafe code of init.
#![allow(unsafe_code)]

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// The entry point of the process. It does not use std's runtime, which aborts when there is no console for standard output: a machine
/// without a console has to boot, too.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    crate::boot()
}

/// Enters new mount, UTS and IPC namespaces.
pub(crate) fn enter_new_namespaces() -> rustix::io::Result<()> {
    // SAFETY: FILES, the flag that can surprise other threads, is not given, and there is one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC) }
}

/// Occupies descriptors 0 to 3 where they are free, so that nothing else is ever opened there: 0 to 2 are a child's standard streams, and 3
/// is machined's socket.
pub(crate) fn occupy_low_descriptors() {
    while let Ok(null) = File::open("/dev/null") {
        if null.as_raw_fd() > 3 {
            break;
        }
        std::mem::forget(null);
    }
}

/// Starts a program with `socket` as its descriptor 3, in the cgroup of `procs`, in a session of its own.
pub(crate) fn spawn(command: &mut Command, socket: OwnedFd, procs: OwnedFd) -> io::Result<Child> {
    let prepare = move || {
        // SAFETY: taken by `occupy_low_descriptors`, so std loses nothing that it needs; and it is not closed here.
        let mut three = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(3) });
        rustix::io::write(&procs, b"0")?;
        rustix::process::setsid()?;
        rustix::io::dup2(&socket, &mut three)?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        Ok(())
    };
    // SAFETY: init has one thread, so its child is a full copy that may do anything; this makes four system calls.
    unsafe { command.pre_exec(prepare) }.spawn()
}
