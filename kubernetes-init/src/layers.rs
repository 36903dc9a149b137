//! The extensions over the base: an overlay over /usr and one over /opt, read-only (systemd-sysext(8)). The later an extension's name, the
//! higher it is. The base is held open, as it cannot be reached by its path any more.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use instar_sys::overlay;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, mount_bind, mount_change};

/// The directories that extensions bring files for.
const HIERARCHIES: [&str; 2] = ["usr", "opt"];

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

/// The extensions over the base.
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
            let base = overlay::layer(Path::new(&path));
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
            match overlay::layer(&path) {
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
        layers.push(self.base.try_clone()?);
        Ok(Some(overlay::make(
            "extensions",
            &layers,
            MountAttrFlags::empty(),
        )?))
    }

    /// Mounts the overlay instead of the one that is there.
    fn cover(&mut self, overlay: Option<OwnedFd>) -> Result<()> {
        let path = Path::new("/").join(self.name);
        overlay::exchange(&path, overlay.as_ref(), self.is_covered)?;
        self.is_covered = overlay.is_some();
        Ok(())
    }
}
