//! Signals as numbers to read, real-time ones among them: crates that wrap signals in an enum leave those out.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

/// The signal that systemd's PID 1 takes as "reboot", SIGRTMIN+5 (systemd(1)). The kernel's first real-time signal is 32, and both C
/// libraries of Linux keep some for themselves; programs that send it to others count from glibc's, 34.
pub const REBOOT: i32 = 34 + 5;

/// A receiver of signals, which wait in the kernel until they are taken.
#[derive(Debug)]
pub struct Receiver(File);

/// Blocks these signals for the calling thread and the threads that it starts, and receives them.
///
/// # Errors
/// The kernel refuses: a number is no signal, or descriptors are used up.
#[expect(
    unsafe_code,
    reason = "sets of signals and signalfd(2) have no safe wrapper that knows real-time signals"
)]
pub fn receive(signals: &[i32]) -> io::Result<Receiver> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the whole set, and sigaddset only changes an initialised one; both get a valid pointer.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in signals {
            if libc::sigaddset(&raw mut set, *signal) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        set
    };
    // SAFETY: the set is initialised, and no old set is asked for.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if blocked != 0 {
        return Err(io::Error::from_raw_os_error(blocked));
    }
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let descriptor =
        unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and this is its only owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(Receiver(descriptor.into()))
}

impl Receiver {
    /// Takes a signal that has come; `None` if none is left. The kernel keeps one of each kind, and all of a real-time kind.
    pub fn take(&self) -> Option<i32> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        (&self.0).read_exact(&mut record).ok()?;
        // `ssi_signo` is the first field (signalfd(2)).
        let number = record
            .first_chunk()
            .map(|bytes| u32::from_ne_bytes(*bytes))?;
        i32::try_from(number).ok()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends a signal to a process.
///
/// # Errors
/// There is no such process, or this one may not signal it.
#[expect(
    unsafe_code,
    reason = "safe wrappers of kill(2) know no real-time signals"
)]
pub fn send(process: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill(2) takes two numbers and touches no memory of this process.
    match unsafe { libc::kill(process, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[expect(unsafe_code, reason = "raise(3) signals one thread")]
    fn raise(signal: i32) {
        // SAFETY: the calling thread has the signal blocked.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn a_real_time_signal_is_taken_by_its_number() {
        // In a thread of its own, which alone has the signals blocked.
        let thread = std::thread::spawn(|| {
            let receiver = receive(&[REBOOT, libc::SIGUSR2]).unwrap();
            assert_eq!(receiver.take(), None);
            raise(REBOOT);
            raise(libc::SIGUSR2);
            let mut taken = [receiver.take(), receiver.take()];
            taken.sort();
            assert_eq!(taken, [Some(libc::SIGUSR2), Some(REBOOT)]);
            assert_eq!(receiver.take(), None);
        });
        thread.join().unwrap();
        assert!(receive(&[1000]).is_err());
        assert!(send(i32::MAX, 0).is_err());
    }
}
