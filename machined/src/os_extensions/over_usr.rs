//! /usr as the kernel has it: the machine's own, and the overlays over it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::mount::MountAttrFlags;

use crate::base::mount_table::{is_mounted, stacked_at};
use crate::mounts::filesystem;
use crate::sys::overlay::{self, Place};

/// The steps from which a change of what lies over /usr is made. Each is done as a whole or not at all, and blocks.
pub(super) trait OverUsr: fmt::Debug + Send + Sync {
    /// Returns the names of the overlays over /usr, the topmost first.
    ///
    /// # Errors
    /// The kernel does not say which.
    fn names(&self) -> anyhow::Result<Vec<String>>;

    /// Puts an overlay of directories, the highest first, over the machine's own /usr, and beneath the topmost overlay that is there.
    ///
    /// # Errors
    /// A directory is not there, or the kernel refuses it.
    fn add(&self, name: &str, directories: &[PathBuf]) -> anyhow::Result<()>;

    /// Takes the topmost overlay away.
    ///
    /// # Errors
    /// The kernel refuses it.
    fn take_topmost(&self) -> anyhow::Result<()>;
}

/// The mounts of this machine.
#[derive(Debug)]
pub(super) struct Mounts {
    usr: PathBuf,
    /// Where the machine's own /usr stays visible.
    own: PathBuf,
}

impl Mounts {
    pub(super) fn new(usr: PathBuf, own: PathBuf) -> Self {
        Mounts { usr, own }
    }

    /// Has the machine's own /usr be visible at its other path. Repeats the second step, as a machined may have died before it.
    fn keep_own_visible(&self) -> anyhow::Result<()> {
        let (usr, own) = (&self.usr, &self.own);
        let kept = || {
            if !is_mounted(own) {
                fs::create_dir_all(own)?;
                filesystem::bind(usr, own)?;
            }
            // Otherwise the overlay at /usr would appear here as well.
            filesystem::make_private(own)
        };
        kept().with_context(|| format!("show the machine's own /usr at {}", own.display()))
    }
}

impl OverUsr for Mounts {
    fn names(&self) -> anyhow::Result<Vec<String>> {
        let table = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
        let overlays = stacked_at(&table, &self.usr).into_iter();
        let overlays = overlays.filter(|mount| mount.kind == "overlay");
        Ok(overlays.map(|mount| mount.source).collect())
    }

    fn add(&self, name: &str, directories: &[PathBuf]) -> anyhow::Result<()> {
        let place = match self.names()?.is_empty() {
            true => Place::Topmost,
            false => Place::Beneath,
        };
        self.keep_own_visible()?;
        let layer = |directory: &Path| {
            let layer = overlay::layer(directory);
            layer.with_context(|| format!("open {}", directory.display()))
        };
        let layers = directories.iter().map(PathBuf::as_path);
        let layers = layers.chain([self.own.as_path()]).map(layer);
        let layers = layers.collect::<anyhow::Result<Vec<_>>>()?;
        // A file of an extension gives nobody another user's rights.
        let overlay = overlay::make(name, &layers, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
        overlay::attach(&self.usr, &overlay, place).context("cannot attach them")
    }

    fn take_topmost(&self) -> anyhow::Result<()> {
        overlay::detach(&self.usr).context("cannot take the old ones away")
    }
}
