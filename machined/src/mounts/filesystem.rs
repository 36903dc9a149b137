//! Wrappers of mount(2) and umount(2).

use std::ffi::CString;
use std::io;
use std::path::Path;

pub use rustix::mount::{MountFlags, UnmountFlags};

/// A filesystem to mount.
#[derive(Debug, Clone, Copy)]
pub struct Filesystem<'a> {
    /// Its type.
    pub kind: &'a str,
    /// The block device, or the source's name for a filesystem without one.
    pub source: &'a Path,
    /// Flags that every type knows.
    pub flags: MountFlags,
    /// Options that only this type knows; may be empty.
    pub options: &'a str,
}

impl Filesystem<'_> {
    /// Mounts the filesystem. The directory `target` must exist.
    pub fn mount(self, target: &Path) -> io::Result<()> {
        let options = CString::new(self.options)?;
        let options = options.as_c_str();
        Ok(rustix::mount::mount(
            self.source,
            target,
            self.kind,
            self.flags,
            options,
        )?)
    }
}

/// Unmounts the topmost mount at `target`.
pub fn unmount(target: &Path, flags: UnmountFlags) -> io::Result<()> {
    Ok(rustix::mount::unmount(target, flags)?)
}

/// Makes a directory or file appear at another path too (a bind mount).
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(source, target)?)
}

/// Sets the flags of a bind mount.
pub fn change_bind(target: &Path, flags: MountFlags) -> io::Result<()> {
    let flags = MountFlags::BIND | flags;
    Ok(rustix::mount::mount_remount(target, flags, c"")?)
}

/// Makes the mount private: later mounts below the target do not propagate to other mount namespaces, nor theirs to this one.
pub fn make_private(target: &Path) -> io::Result<()> {
    let private = rustix::mount::MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change(target, private)?)
}
