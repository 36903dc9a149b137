//! Read-only trees over a directory (overlayfs).
//!
//! ```text
//!   /usr    overlay:  one tree's usr      the first layer is the highest
//!                     another tree's usr
//!                     the base's /usr     the last layer
//! ```
//!
//! A change makes a new overlay, puts it beneath the old one, and takes the old one away: a file is there at every moment. Processes that
//! run keep the files of the old one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

/// A mount goes beneath the one that is there (mount.h of the kernel), which rustix has no name for.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);

/// Opens a directory as a layer.
///
/// # Errors
/// It is not there, or no directory.
pub fn layer(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Makes a read-only overlay of layers, the highest first. It is not attached to a path yet. The table of mounts shows `name` as its source.
///
/// # Errors
/// The kernel refuses it.
pub fn make(name: &str, layers: &[OwnedFd], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(overlay.as_fd(), "source", name)?;
    for layer in layers {
        // By its descriptor, as a path may be longer than the kernel takes.
        let layer = format!("/proc/self/fd/{}", layer.as_raw_fd());
        fsconfig_set_string(overlay.as_fd(), "lowerdir+", layer)?;
    }
    fsconfig_create(overlay.as_fd())?;
    Ok(fsmount(
        overlay.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV | attributes,
    )?)
}

/// The place of an overlay among those that cover a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Over all: its files are seen at once.
    Topmost,
    /// Beneath the topmost one: its files are seen once that one goes.
    Beneath,
}

/// Has an overlay cover a directory.
///
/// # Errors
/// The kernel refuses it.
pub fn attach(path: &Path, overlay: &OwnedFd, place: Place) -> io::Result<()> {
    let flags = match place {
        Place::Topmost => MoveMountFlags::empty(),
        Place::Beneath => BENEATH,
    };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | flags;
    Ok(move_mount(overlay, "", CWD, path, flags)?)
}

/// Takes the topmost overlay at a directory away. Processes that use it keep it.
///
/// # Errors
/// The kernel refuses it.
pub fn detach(path: &Path) -> io::Result<()> {
    Ok(unmount(path, UnmountFlags::DETACH)?)
}

/// Has an overlay cover a directory, or none. `is_covered`: an earlier one does now, and goes.
///
/// # Errors
/// The kernel refuses it.
pub fn exchange(path: &Path, overlay: Option<&OwnedFd>, is_covered: bool) -> Result<()> {
    if let Some(overlay) = overlay {
        let place = match is_covered {
            true => Place::Beneath,
            false => Place::Topmost,
        };
        attach(path, overlay, place).context("cannot attach them")?;
    }
    if is_covered {
        detach(path).context("cannot take the old ones away")?;
    }
    Ok(())
}
