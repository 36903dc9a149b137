//! Descriptors that this process was started with.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes ownership of the one descriptor that init passes by number; a second call fails.
#[expect(
    unsafe_code,
    reason = "a descriptor by number exists in no safe interface"
)]
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(io::Error::other(format!(
            "descriptor {number} was taken before"
        )));
    }
    // SAFETY: fcntl(F_GETFD) reads a flag of the descriptor and touches no memory; it fails where there is none.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above; the flag keeps the descriptor out of the programs that this process starts.
    if unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, init passed it for this process alone, and TAKEN makes this its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
