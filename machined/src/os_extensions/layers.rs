//! The extensions over the machine's own /usr.
//!
//! The machine's own /usr stays visible at a path in memory: the bottom of each overlay, and what extensions are compared with. It is also
//! how a machined that starts again in the same generation sees that /usr is covered. An overlay holds the file system of /var, so that it
//! has to go before /var is unmounted: [`close`](Layers::close), which refuses others until [`open`](Layers::open).

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io};

use anyhow::{Context as _, ensure};
use rustix::mount::MountAttrFlags;

use crate::base::lock::Lock as _;
use crate::mounts::filesystem;
use crate::sys::overlay;
use crate::values::Digest;

const USR: &str = "/usr";
/// Where the machine's own /usr stays visible.
const OWN: &str = "/run/os-extensions/usr";

/// What lies over /usr; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    state: Arc<Mutex<State>>,
}

/// The files of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The image.
    pub image: Digest,
    /// Its root.
    pub path: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the disk that the trees are on is there.
    is_open: bool,
    /// The trees in force; `None` until this machined has laid some.
    trees: Option<Vec<Tree>>,
    /// The images of all trees that this machined has laid: containers may still have an overlay of before, with their files.
    laid: BTreeSet<Digest>,
}

impl Layers {
    /// Lets trees be laid: their disk is there.
    pub fn open(&self) {
        self.state.locked().is_open = true;
    }

    /// Takes all trees away, and refuses others: their disk goes. Blocks.
    ///
    /// # Errors
    /// The kernel refuses it; the generation's end takes them away.
    pub fn close(&self) -> anyhow::Result<()> {
        let mut state = self.state.locked();
        state.is_open = false;
        state.trees = None;
        lay(&[])
    }

    /// Lays the `usr` of these trees over the machine's own, the last one highest, in place of those that are there. Blocks.
    ///
    /// # Errors
    /// The disk is not there; the kernel refuses it, and what was there stays.
    pub fn put(&self, trees: &[Tree]) -> anyhow::Result<()> {
        let mut state = self.state.locked();
        ensure!(
            state.is_open || trees.is_empty(),
            "the disk of the extensions is not mounted"
        );
        if state.trees.as_deref() == Some(trees) {
            return Ok(());
        }
        // Before: an overlay may be there although what follows fails.
        state.laid.extend(trees.iter().map(|tree| tree.image));
        lay(trees).context("cannot lay the extensions over /usr")?;
        state.trees = Some(trees.to_vec());
        Ok(())
    }

    /// Returns the images that must not be removed in this generation: a container keeps the overlay that it has mounted, and nobody sees
    /// from outside that it does.
    pub fn laid(&self) -> BTreeSet<Digest> {
        self.state.locked().laid.clone()
    }

    /// Returns the path of the machine's own /usr, without extensions.
    pub fn own_usr(&self) -> &'static Path {
        let _state = self.state.locked();
        match is_mounted(Path::new(OWN)) {
            true => Path::new(OWN),
            false => Path::new(USR),
        }
    }
}

fn lay(trees: &[Tree]) -> anyhow::Result<()> {
    let (usr, own) = (Path::new(USR), Path::new(OWN));
    let is_covered = is_mounted(own) && !is_same(usr, own);
    if trees.is_empty() {
        return overlay::exchange(usr, None, is_covered);
    }
    if !is_mounted(own) {
        keep_visible(usr, own).with_context(|| format!("show the machine's own /usr at {OWN}"))?;
    }
    let mut layers = Vec::new();
    for tree in trees.iter().rev() {
        let tree = tree.path.join("usr");
        let layer = overlay::layer(&tree);
        layers.push(layer.with_context(|| format!("open {}", tree.display()))?);
    }
    layers.push(overlay::layer(own).with_context(|| format!("open {OWN}"))?);
    // A file of an extension gives nobody another user's rights.
    let overlay = overlay::make(&layers, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    overlay::exchange(usr, Some(&overlay), is_covered)
}

fn keep_visible(usr: &Path, own: &Path) -> io::Result<()> {
    fs::create_dir_all(own)?;
    filesystem::bind(usr, own)?;
    // Otherwise the overlay at /usr would appear here as well.
    filesystem::make_private(own)
}

fn is_mounted(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|it| it.dev()).ok();
    let above = path.parent().and_then(device);
    device(path).is_some_and(|device| Some(device) != above)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nothing_is_laid_while_the_disk_is_away() {
        let layers = Layers::default();
        let tree = [Tree {
            image: Digest::of(b"tree"),
            path: PathBuf::from("/var/tree"),
        }];
        let refused = layers.put(&tree).unwrap_err().to_string();
        assert!(refused.contains("is not mounted"), "{refused}");
        assert!(layers.laid().is_empty());
        // No trees need no disk, and a machine without extensions mounts nothing.
        layers.put(&[]).unwrap();
        layers.close().unwrap();
        assert_eq!(layers.own_usr(), Path::new(USR));
        assert!(!Path::new(OWN).exists());
    }
}
