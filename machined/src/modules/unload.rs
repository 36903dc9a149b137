//! Removes modules from the kernel.

use std::{ffi::CString, fs, io, path::Path};

use rustix::io::Errno;

use super::ModuleName;

/// `O_NONBLOCK`: do not wait for a module in use (delete_module(2)).
const AT_ONCE: i32 = 0o4000;

/// The outcome of unloading a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unloaded {
    /// The module is not in the kernel any more.
    Gone,
    /// The module drives a device, so it stays.
    Drives,
}

/// Unloads a module, unless it drives a device.
///
/// # Errors
/// It is in use, or cannot be unloaded.
pub(super) fn unload(sysfs: &Path, name: &ModuleName) -> io::Result<Unloaded> {
    let module = sysfs.join("module").join(name);
    if !module.join("initstate").exists() {
        // The module is built into the kernel, or not loaded.
        return Ok(Unloaded::Gone);
    }
    if drives_a_device(&module) {
        return Ok(Unloaded::Drives);
    }
    let name = CString::new(name.to_string())?;
    match rustix::system::delete_module(&name, AT_ONCE) {
        Ok(()) | Err(Errno::NOENT) => Ok(Unloaded::Gone),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether the module drives a device: a driver's directory links to the devices that it is bound to, and to its module.
fn drives_a_device(module: &Path) -> bool {
    let drivers = fs::read_dir(module.join("drivers"));
    drivers.into_iter().flatten().flatten().any(|driver| {
        let entries = fs::read_dir(driver.path());
        let mut entries = entries.into_iter().flatten().flatten();
        entries.any(|entry| {
            entry.file_name() != "module" && entry.file_type().is_ok_and(|kind| kind.is_symlink())
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_driver_of_a_device_stays_and_what_is_not_there_is_gone() {
        let sysfs = tempfile::tempdir().unwrap();
        let name = ModuleName::new("virtio-net");
        assert_eq!(unload(sysfs.path(), &name).unwrap(), Unloaded::Gone);
        let module = sysfs.path().join("module/virtio_net");
        let driver = module.join("drivers/virtio:virtio_net");
        fs::create_dir_all(&driver).unwrap();
        assert_eq!(unload(sysfs.path(), &name).unwrap(), Unloaded::Gone);
        fs::write(module.join("initstate"), "live").unwrap();
        symlink("../../..", driver.join("module")).unwrap();
        assert!(!drives_a_device(&module));
        symlink("../../../../devices/x", driver.join("virtio0")).unwrap();
        assert_eq!(unload(sysfs.path(), &name).unwrap(), Unloaded::Drives);
    }
}
