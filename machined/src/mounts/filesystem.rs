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
