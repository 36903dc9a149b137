//! A private mount namespace (mount_namespaces(7)).

use rustix::thread::UnshareFlags;

/// Gives the calling thread a copy of its mounts; no other thread sees changes of it. Root and working directory become its own, too
/// (unshare(2)).
#[expect(
    unsafe_code,
    reason = "rustix leaves it to the caller to give no flag that is dangerous"
)]
pub fn leave_shared_mounts() -> std::io::Result<()> {
    // SAFETY: of all flags only FILES can do harm, and it is not given.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}
