//! The root filesystem of a container: the image below, a writable layer above, joined by overlayfs.
//!
//! The image itself is never written to, and a container that starts again starts from the image: data that is to last belongs on a mount.
//!
//! The overlay is configured with one call for each option: in the single text that mount(2) takes, a comma or a colon of a path would
//! be read as the next option. Only these calls give the kernel's log of a failed mount.
//!
//! If /var is full, the writable layer is a little memory: a container that fills /var must not keep other containers from starting,
//! least of all during an upgrade. That memory is mounted beside the container's root, where no other container can use it up.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

use crate::base::removal;
use crate::mounts::filesystem::{Filesystem, MountFlags};

/// Why a container's root filesystem cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// The kernel has no overlayfs.
    #[error(
        "overlayfs is not available; the kernel needs its module \"overlay\" to run containers"
    )]
    NoOverlay,
    /// A directory cannot be made, read or removed.
    #[error("{step} {path:?} failed")]
    Io {
        /// The failed step.
        step: &'static str,
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The mount failed.
    #[error("mounting overlayfs at {path:?} failed at {step}{said}")]
    Mount {
        /// The failed step.
        step: &'static str,
        /// The mount point.
        path: PathBuf,
        /// The kernel's log of this mount, ready to follow the sentence.
        said: String,
        /// The kernel's error.
        source: io::Error,
    },
}

fn failed<'a>(step: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> RootfsError + 'a {
    move |source| RootfsError::Io {
        step,
        path: path.to_owned(),
        source,
    }
}

/// A filesystem with fewer free bytes or inodes than this counts as full: the runtime makes a few directories in a layer, and
/// some more containers may be about to start.
const LEAST_BYTES: u64 = 16 << 20;
const LEAST_INODES: u64 = 512;
/// Options of the writable layer in memory, for a filesystem that is full.
const IN_MEMORY: &str = "size=8m,nr_inodes=2048";

/// Mounts an image at `target` with a fresh writable layer: in `layer`, or in memory if there is no room. Makes both directories.
pub(super) fn mount(image: &Path, layer: &Path, target: &Path) -> Result<(), RootfsError> {
    remove_tree(layer)?;
    let in_memory;
    let layer = match has_room(layer) {
        true => layer,
        false => {
            in_memory = layer_in_memory(target);
            tracing::warn!(
                "{}: there is no room for the container's own files, a little memory takes them ({IN_MEMORY})",
                layer.display()
            );
            mount_memory(&in_memory)?;
            &in_memory
        }
    };
    let [upper, work] = ["upper", "work"].map(|name| layer.join(name));
    for directory in [&upper, &work] {
        fs::create_dir_all(directory).map_err(failed("creating", directory))?;
    }
    fs::create_dir_all(target).map_err(failed("creating", target))?;
    // The upper directory is the root of the joined tree, so it gets the owner and mode of the image's root.
    let root = fs::metadata(image).map_err(failed("reading", image))?;
    let permissions = fs::Permissions::from_mode(root.mode() & 0o7777);
    fs::set_permissions(&upper, permissions).map_err(failed("changing", &upper))?;
    std::os::unix::fs::chown(&upper, Some(root.uid()), Some(root.gid()))
        .map_err(failed("changing", &upper))?;

    let context = match fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(context) => context,
        Err(Errno::NODEV) => return Err(RootfsError::NoOverlay),
        Err(errno) => return Err(mount_failed("fsopen", target, String::new(), errno)),
    };
    let steps = [
        ("lowerdir", image),
        ("upperdir", upper.as_path()),
        ("workdir", work.as_path()),
    ];
    for (key, value) in steps {
        fsconfig_set_string(&context, key, value)
            .map_err(|errno| mount_failed(key, target, kernel_log(&context), errno))?;
    }
    fsconfig_create(&context)
        .map_err(|errno| mount_failed("create", target, kernel_log(&context), errno))?;
    // No device nodes: images bring none, and a node from elsewhere is of no use here.
    let mounted = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NODEV,
    )
    .map_err(|errno| mount_failed("fsmount", target, kernel_log(&context), errno))?;
    move_mount(
        &mounted,
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(|errno| mount_failed("move_mount", target, String::new(), errno))
}

/// Returns whether the filesystem of a path that is still to be made has room for a layer. If that is unknown, the answer is yes:
/// the next step fails with the reason.
fn has_room(layer: &Path) -> bool {
    let there = layer.ancestors().find(|path| path.exists());
    let Some(Ok(room)) = there.map(rustix::fs::statvfs) else {
        return true;
    };
    let bytes = room.f_bavail.saturating_mul(room.f_frsize);
    // Some kinds of filesystem do not count inodes.
    let inodes = if room.f_files == 0 {
        u64::MAX
    } else {
        room.f_favail
    };
    bytes >= LEAST_BYTES && inodes >= LEAST_INODES
}

/// Path of the layer in memory, beside the joined tree.
fn layer_in_memory(target: &Path) -> PathBuf {
    target.with_file_name("layer")
}

fn mount_memory(layer: &Path) -> Result<(), RootfsError> {
    fs::create_dir_all(layer).map_err(failed("creating", layer))?;
    let memory = Filesystem {
        kind: "tmpfs",
        source: Path::new("tmpfs"),
        flags: MountFlags::NODEV,
        options: IN_MEMORY,
    };
    memory
        .mount(layer)
        .map_err(failed("mounting memory at", layer))
}

fn mount_failed(step: &'static str, path: &Path, said: String, errno: Errno) -> RootfsError {
    RootfsError::Mount {
        step,
        path: path.to_owned(),
        said,
        source: errno.into(),
    }
}

/// Reads the kernel's log of this mount from its context: it says far more than an error number.
fn kernel_log(context: &impl std::os::fd::AsFd) -> String {
    let mut said = String::new();
    let mut message = [0_u8; 512];
    while let Ok(length @ 1..) = rustix::io::read(context, &mut message) {
        said.push_str(": ");
        said.push_str(String::from_utf8_lossy(&message[..length]).trim_end());
    }
    said
}

/// Unmounts the root filesystem and removes the writable layer. If either is missing, that is no error.
pub(super) fn unmount_and_remove(layer: &Path, target: &Path) -> Result<(), RootfsError> {
    unmount_here(target)?;
    remove_tree(layer)
}

/// Unmounts the root filesystem in this mount namespace. A container that has a copy of the mount keeps it.
pub(super) fn unmount_here(target: &Path) -> Result<(), RootfsError> {
    for mounted in [target, &layer_in_memory(target)] {
        match unmount(mounted, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            // Another process has a file of it open. The kernel finishes the unmount when the last one is closed.
            Err(Errno::BUSY) => unmount(mounted, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
                .map_err(|errno| failed("unmounting", mounted)(errno.into()))?,
            Err(errno) => return Err(failed("unmounting", mounted)(errno.into())),
        }
    }
    Ok(())
}

fn remove_tree(path: &Path) -> Result<(), RootfsError> {
    removal::tree(path).map_err(failed("removing", path))
}
