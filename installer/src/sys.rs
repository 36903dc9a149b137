//! The `unsafe` code of the installer.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

/// The descriptor of machined's socket.
const SOCKET: RawFd = 3;

/// A duplicate of descriptor 3; an error when there is none.
pub(crate) fn inherited_socket() -> io::Result<OwnedFd> {
    // SAFETY: the borrow ends with this call, nothing in this program closes descriptor 3, and one that is not open makes
    // the duplication fail with EBADF.
    let inherited = unsafe { BorrowedFd::borrow_raw(SOCKET) };
    inherited.try_clone_to_owned()
}
