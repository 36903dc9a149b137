//! The extensions over the base: an overlay over /usr and one over /opt, read-only (systemd-sysext(8)).
//!
//! ```text
//!   /usr    overlay:  kubernetes/usr      the later an extension's name, the higher
//!                     containerd/usr
//!                     the base's /usr     held open, as it cannot be reached by its path any more
//! ```
//!
//! A change makes new overlays, puts them beneath the old ones, and takes these away: a program is there at every moment. Processes that
//! run keep the files of the old ones.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_bind, mount_change, move_mount,
    unmount,
};

/// The directories that extensions bring files for.
const HIERARCHIES: [&str; 2] = ["usr", "opt"];
/// A mount goes beneath the one that is there (mount.h of the kernel), which rustix has no name for.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);

/// Mounts go from this container's root into pods and back, as kubelet needs it for volumes.
pub(crate) fn share_mounts() -> Result<()> {
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", shared).context("cannot share mounts with pods")
}

/// Puts a file over another one, if there is one to put.
pub(crate) fn put_over(file: &Path, other: &str) -> Result<()> {
    if !file.exists() {
        return Ok(());
    }
    mount_bind(file, other).with_context(|| format!("cannot put {} over {other}", file.display()))
}

/// What is over the base.
#[derive(Debug)]
pub(crate) struct Layers {
    hierarchies: Vec<Hierarchy>,
    trees: Vec<PathBuf>,
}

#[derive(Debug)]
struct Hierarchy {
    /// `usr`
    name: &'static str,
    /// The base's directory.
    base: OwnedFd,
    is_covered: bool,
}

impl Layers {
    /// Opens the base's directories.
    pub(crate) fn new() -> Result<Self> {
        let hierarchies = HIERARCHIES.into_iter().map(|name| {
            let path = format!("/{name}");
            fs::create_dir_all(&path).with_context(|| format!("cannot make {path}"))?;
            let base = directory(Path::new(&path));
            Ok(Hierarchy {
                name,
                base: base.with_context(|| format!("cannot open {path}"))?,
                is_covered: false,
            })
        });
        Ok(Layers {
            hierarchies: hierarchies.collect::<Result<_>>()?,
            trees: Vec::new(),
        })
    }

    /// Puts these trees over the base, the last one highest, instead of those that are there. An error changes nothing unless it is of the
    /// last step.
    pub(crate) fn put(&mut self, trees: &[PathBuf]) -> Result<()> {
        if self.trees == trees {
            return Ok(());
        }
        let prepared = self.hierarchies.iter().map(|hierarchy| {
            let overlay = hierarchy.overlay(trees);
            overlay.with_context(|| format!("cannot lay the extensions over /{}", hierarchy.name))
        });
        let prepared: Vec<Option<OwnedFd>> = prepared.collect::<Result<_>>()?;
        for (hierarchy, overlay) in self.hierarchies.iter_mut().zip(prepared) {
            hierarchy
                .cover(overlay)
                .with_context(|| format!("cannot mount the extensions over /{}", hierarchy.name))?;
        }
        self.trees = trees.to_vec();
        Ok(())
    }
}

impl Hierarchy {
    /// Makes the overlay of the trees that have this directory; `None` if none has.
    fn overlay(&self, trees: &[PathBuf]) -> Result<Option<OwnedFd>> {
        let mut layers = Vec::new();
        for tree in trees.iter().rev() {
            let path = tree.join(self.name);
            match directory(&path) {
                Ok(layer) => layers.push(layer),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot open {}", path.display()));
                }
            }
        }
        if layers.is_empty() {
            return Ok(None);
        }
        let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(overlay.as_fd(), "source", "extensions")?;
        for layer in layers.iter().chain([&self.base]) {
            // The highest first. By its descriptor, as a path may be longer than the kernel takes.
            let layer = format!("/proc/self/fd/{}", layer.as_raw_fd());
            fsconfig_set_string(overlay.as_fd(), "lowerdir+", layer)?;
        }
        fsconfig_create(overlay.as_fd())?;
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
        Ok(Some(fsmount(
            overlay.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            read_only,
        )?))
    }

    /// Mounts the overlay instead of the one that is there.
    fn cover(&mut self, overlay: Option<OwnedFd>) -> Result<()> {
        let path = format!("/{}", self.name);
        if let Some(overlay) = &overlay {
            let beneath = match self.is_covered {
                true => BENEATH,
                false => MoveMountFlags::empty(),
            };
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | beneath;
            move_mount(overlay, "", CWD, &path, flags).context("cannot attach them")?;
        }
        if self.is_covered {
            unmount(&path, UnmountFlags::DETACH).context("cannot take the old ones away")?;
        }
        self.is_covered = overlay.is_some();
        Ok(())
    }
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}
