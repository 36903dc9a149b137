//! Waits for a descriptor to become readable or writable.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor that has no other owner.
#[expect(
    unsafe_code,
    reason = "tokio leaves it to the caller to promise that the descriptor stays what it is"
)]
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, refers to the same description and has the same number for as long as it lives, and
    // the AsyncFd owns it.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
    Ok(watched?)
}
