//! A container's own view of its image: the image below, a writable layer above, joined by overlayfs.
//!
//! The image itself is never written to, and a container that starts again starts from the image: what is to last
//! belongs on a mount.
//!
//! The overlay is mounted with the calls for one option each: in the one text that mount(2) takes, a comma or a colon of a path would
//! be read as the next option, and the kernel's log of the attempt is only to be had this way.
//!
//! Where /var is full the writable layer is a little memory: a container that fills /var must not keep others from starting, an
//! upgrade's least of all. It is mounted beside the container's root, and nobody can take its room.

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

use crate::mounts::filesystem::{Filesystem, MountFlags};

/// Why a container has no file system.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// The kernel does not know it.
    #[error(
        "overlayfs is not available; the kernel needs its module \"overlay\" to run containers"
    )]
    NoOverlay,
    /// Directories.
    #[error("{step} {path:?} failed")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// The mount itself.
    #[error("mounting overlayfs at {path:?} failed at {step}{said}")]
    Mount {
        /// What was tried.
        step: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's log of this mount, ready to follow the sentence.
        said: String,
        /// The kernel's word.
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

/// Below this, in bytes and in inodes, a filesystem is full: the runtime makes a few directories in a layer, and those of some more
/// containers may be about to start.
const LEAST_BYTES: u64 = 16 << 20;
const LEAST_INODES: u64 = 512;
/// What a container may write to its root where that is the case.
const IN_MEMORY: &str = "size=8m,nr_inodes=2048";

/// Mounts an image with a fresh writable layer in `layer`, or in memory where there is no room, at `target`. Both are made.
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
    // The root of the joined tree is the upper one: it has to look like the image's.
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
    // Images bring no devices; whatever else might is of no use here.
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

/// Whether the filesystem of a path that is still to be made has room for a layer. What cannot be looked at is left to fail by itself.
fn has_room(layer: &Path) -> bool {
    let there = layer.ancestors().find(|path| path.exists());
    let Some(Ok(room)) = there.map(rustix::fs::statvfs) else {
        return true;
    };
    let bytes = room.f_bavail.saturating_mul(room.f_frsize);
    // Some kinds of filesystem don't count inodes.
    let inodes = if room.f_files == 0 {
        u64::MAX
    } else {
        room.f_favail
    };
    bytes >= LEAST_BYTES && inodes >= LEAST_INODES
}

/// Beside the joined tree.
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

/// What the kernel wrote about this mount into its context: far more than an error number.
fn kernel_log(context: &impl std::os::fd::AsFd) -> String {
    let mut said = String::new();
    let mut message = [0_u8; 512];
    while let Ok(length @ 1..) = rustix::io::read(context, &mut message) {
        said.push_str(": ");
        said.push_str(String::from_utf8_lossy(&message[..length]).trim_end());
    }
    said
}

/// Unmounts what `mount` mounted and removes the writable layer. Nothing there is as good as removed.
pub(super) fn unmount_and_remove(layer: &Path, target: &Path) -> Result<(), RootfsError> {
    unmount_here(target)?;
    remove_tree(layer)
}

/// Unmounts what `mount` mounted from where it is seen here; a container that has a copy of the mount keeps that.
pub(super) fn unmount_here(target: &Path) -> Result<(), RootfsError> {
    for mounted in [target, &layer_in_memory(target)] {
        match unmount(mounted, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            // Somebody looks into it from outside; the last one out closes it.
            Err(Errno::BUSY) => unmount(mounted, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
                .map_err(|errno| failed("unmounting", mounted)(errno.into()))?,
            Err(errno) => return Err(failed("unmounting", mounted)(errno.into())),
        }
    }
    Ok(())
}

fn remove_tree(path: &Path) -> Result<(), RootfsError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(failed("removing", path)),
    }
}
