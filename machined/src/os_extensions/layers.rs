//! The extensions over the machine's own /usr.
//!
//! ```text
//!   put ──► record with the new overlay ──► new overlay, beneath the old one ──► the old one goes
//!                                      ▲                                    ▲
//!                    ended here: the old ones are in force       ended here: the old ones are,
//!                                                                and the next look takes them away
//! ```
//!
//! The machine's own /usr stays visible at a path in memory: the bottom of each overlay, and what extensions are compared with. What lies
//! over /usr is asked of the kernel, by the name of the overlay, and the record (`laid.rs`) says which trees that name stands for: so a
//! machined that starts again in the same generation lays nothing again. An overlay holds the file system of /var, so that it has to go
//! before /var is unmounted: [`close`](Layers::close), which refuses others until [`open`](Layers::open).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, ensure};

use super::laid::{Laid, Tree};
use super::over_usr::{Mounts, OverUsr};
use crate::base::lock::Lock as _;
use crate::base::mount_table::is_mounted;
use crate::values::Digest;

/// The record in its directory.
const RECORD: &str = "laid.json";
/// The machine's own /usr in the same directory.
const OWN: &str = "usr";

/// The layers of files over /usr; clones share them.
#[derive(Debug, Clone)]
pub struct Layers {
    usr: PathBuf,
    home: PathBuf,
    over_usr: Arc<dyn OverUsr>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the disk that the trees are on is there.
    is_open: bool,
    /// The trees in force; `None` while only the kernel knows, at a start and after a failure.
    in_force: Option<Vec<Tree>>,
    laid: Laid,
}

impl Layers {
    /// Returns the layers over a directory; `home` is one in memory that ends with the generation.
    pub fn at(usr: PathBuf, home: PathBuf) -> Self {
        let mounts = Mounts::new(usr.clone(), home.join(OWN));
        Layers {
            usr,
            home,
            over_usr: Arc::new(mounts),
            state: Arc::default(),
        }
    }

    /// Takes over what an earlier machined of this generation has laid. Nothing changes by it.
    ///
    /// # Errors
    /// The record cannot be read: the layers over /usr are laid again.
    pub fn adopt(&self) -> anyhow::Result<()> {
        self.state.locked().laid = Laid::read(&self.home.join(RECORD))?;
        Ok(())
    }

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
        self.change(&mut state, &[])
    }

    /// Lays the `usr` of these trees over the machine's own, the last one highest, in place of those that are there. Blocks.
    ///
    /// # Errors
    /// The disk is not there; the kernel refuses it, and the previous layers stay.
    pub fn put(&self, trees: &[Tree]) -> anyhow::Result<()> {
        let mut state = self.state.locked();
        ensure!(
            state.is_open || trees.is_empty(),
            "the disk of the extensions is not mounted"
        );
        let put = self.change(&mut state, trees);
        put.context("cannot lay the extensions over /usr")
    }

    /// Returns the trees in force; `None` if nobody knows what an overlay is made of. Blocks.
    ///
    /// # Errors
    /// The kernel does not tell the layers.
    pub fn in_force(&self) -> anyhow::Result<Option<Vec<Tree>>> {
        let mut state = self.state.locked();
        self.find(&mut state)?;
        Ok(state.in_force.clone())
    }

    /// Returns the images that must not be removed in this generation: a container keeps the overlay that it has mounted, and nobody sees
    /// from outside that it does.
    pub fn laid(&self) -> BTreeSet<Digest> {
        self.state.locked().laid.images.clone()
    }

    /// Returns the path of the machine's own /usr, without extensions.
    pub fn own_usr(&self) -> PathBuf {
        let _state = self.state.locked();
        let own = self.home.join(OWN);
        match is_mounted(&own) {
            true => own,
            false => self.usr.clone(),
        }
    }

    /// Finds out what is in force. A change that was cut off ends here: the new overlay is beneath the old one, whole.
    fn find(&self, state: &mut State) -> anyhow::Result<()> {
        if state.in_force.is_some() {
            return Ok(());
        }
        let mut names = self.over_usr.names()?;
        while names.len() > 1 {
            self.over_usr.take_topmost()?;
            names.remove(0);
        }
        state.in_force = match names.pop() {
            Some(name) => state.laid.trees(&name).cloned(),
            None => Some(Vec::new()),
        };
        Ok(())
    }

    fn change(&self, state: &mut State, trees: &[Tree]) -> anyhow::Result<()> {
        self.find(state)?;
        if state.in_force.as_deref() == Some(trees) {
            return Ok(());
        }
        // Until it has succeeded, the kernel alone knows.
        state.in_force = None;
        let name = match trees {
            [] => None,
            trees => Some(self.add(state, trees)?),
        };
        let kept = usize::from(name.is_some());
        let there = self.over_usr.names()?.len();
        for _ in kept..there {
            self.over_usr.take_topmost()?;
        }
        state.in_force = Some(trees.to_vec());
        state.laid.keep_only(name.as_deref());
        // A record with too many overlays says nothing wrong.
        if let Err(error) = self.write(&state.laid) {
            tracing::warn!("extensions: the record of overlays keeps one that is gone: {error:#}");
        }
        Ok(())
    }

    /// Adds an overlay, beneath the one that is there; returns its name. It is in the record before it can be there.
    fn add(&self, state: &mut State, trees: &[Tree]) -> anyhow::Result<String> {
        let (laid, name) = state.laid.with(trees, &self.over_usr.names()?);
        self.write(&laid)?;
        state.laid = laid;
        let directories = trees.iter().rev().map(|tree| usr_of(&tree.path));
        self.over_usr.add(&name, &directories.collect::<Vec<_>>())?;
        Ok(name)
    }

    fn write(&self, laid: &Laid) -> anyhow::Result<()> {
        // A machine without extensions has no record.
        match *laid == Laid::default() {
            true => Ok(()),
            false => laid.write(&self.home.join(RECORD)),
        }
    }
}

impl Default for Layers {
    fn default() -> Self {
        Self::at("/usr".into(), "/run/os-extensions".into())
    }
}

fn usr_of(tree: &Path) -> PathBuf {
    tree.join("usr")
}

#[cfg(test)]
mod tests;
