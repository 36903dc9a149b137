//! mount(2): a filesystem, and where it goes.

use std::ffi::CString;
use std::io;
use std::path::Path;

pub use rustix::mount::{MountFlags, UnmountFlags};

/// A filesystem to mount.
#[derive(Debug, Clone, Copy)]
pub struct Filesystem<'a> {
    /// Its type.
    pub kind: &'a str,
    /// The block device, or what stands for one.
    pub source: &'a Path,
    /// Flags of every type.
    pub flags: MountFlags,
    /// Options of this type; may be empty.
    pub options: &'a str,
}

impl Filesystem<'_> {
    /// Mounts it. The directory must be there.
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

/// Unmounts what was mounted there last.
pub fn unmount(target: &Path, flags: UnmountFlags) -> io::Result<()> {
    Ok(rustix::mount::unmount(target, flags)?)
}

/// Has a directory or file appear at another place too.
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(source, target)?)
}

/// Gives such a place flags of its own.
pub fn change_bind(target: &Path, flags: MountFlags) -> io::Result<()> {
    let flags = MountFlags::BIND | flags;
    Ok(rustix::mount::mount_remount(target, flags, c"")?)
}

/// Has later mounts below the target stay there, and others away from it.
pub fn make_private(target: &Path) -> io::Result<()> {
    let private = rustix::mount::MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change(target, private)?)
}
