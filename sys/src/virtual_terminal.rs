//! The kernel's virtual terminals (ioctl_console(2)): selects the one on the screen, and the one for the kernel's own messages.

use std::ffi::c_int;
use std::os::fd::AsFd;

use rustix::io;
use rustix::ioctl::{self, IntegerSetter, Setter};

/// `VT_ACTIVATE` of `linux/vt.h`.
const VT_ACTIVATE: ioctl::Opcode = 0x5606;
/// `TIOCLINUX` of `asm-generic/ioctls.h`.
const TIOCLINUX: ioctl::Opcode = 0x541c;
/// `TIOCL_SETKMSGREDIRECT` of `linux/tiocl.h`.
const KERNEL_MESSAGES_GO_TO: u8 = 11;

/// Switches the screen to this terminal. `console` is any virtual terminal.
#[expect(unsafe_code, reason = "there is no safe interface for this ioctl")]
pub fn show(console: impl AsFd, terminal: u8) -> io::Result<()> {
    // SAFETY: VT_ACTIVATE takes the terminal's number in place of a pointer and touches no memory.
    unsafe {
        let number = IntegerSetter::<VT_ACTIVATE>::new_usize(terminal.into());
        ioctl::ioctl(console, number)
    }
}

/// Prints the kernel's messages to this terminal instead of the visible one.
#[expect(unsafe_code, reason = "there is no safe interface for this ioctl")]
pub fn send_kernel_messages_to(console: impl AsFd, terminal: u8) -> io::Result<()> {
    // SAFETY: this TIOCLINUX reads two bytes, its own number and the terminal's; there are four.
    unsafe {
        let words = Setter::<TIOCLINUX, [u8; size_of::<c_int>()]>::new([
            KERNEL_MESSAGES_GO_TO,
            terminal,
            0,
            0,
        ]);
        ioctl::ioctl(console, words)
    }
}
