//! A mount namespace of one's own (mount_namespaces(7)).

use rustix::thread::UnshareFlags;

/// Gives the calling thread a copy of its mounts, which nobody else sees change. Its root and working directory are its own from then
/// on, too (unshare(2)).
#[expect(
    unsafe_code,
    reason = "rustix leaves it to the caller to give no flag that is dangerous"
)]
pub fn leave_shared_mounts() -> std::io::Result<()> {
    // SAFETY: of all flags only FILES can do harm, and it is not given.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}
