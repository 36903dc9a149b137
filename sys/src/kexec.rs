//! Loads the kernel that the next reboot jumps into (kexec_file_load(2)).

// There is no safe wrapper of this system call.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Loads this kernel for a reboot that jumps into it; it replaces one that was loaded before.
///
/// # Errors
/// The kernel's error: `EPERM` or `ENOKEY` if Secure Boot forbids it, `EBUSY` while another kernel is being loaded.
pub fn load(kernel: BorrowedFd<'_>, initramfs: BorrowedFd<'_>, arguments: &CStr) -> io::Result<()> {
    let length = arguments.to_bytes_with_nul().len();
    let no_flags: libc::c_ulong = 0;
    // SAFETY: both descriptors are open for the whole of the call, the arguments are so many bytes with a NUL at their end,
    // and the kernel copies all it takes.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initramfs.as_raw_fd(),
            length,
            arguments.as_ptr(),
            no_flags,
        )
    };
    if answer == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}
