//! The record of the overlays over /usr, in memory: a machined that starts again in the same generation knows by it which trees an overlay
//! is made of, and which images containers may still have. The kernel says which overlays are there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::whole_file;
use crate::values::Digest;

/// The files of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// The image.
    pub image: Digest,
    /// Its root.
    pub path: PathBuf,
}

/// The overlays of this generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Laid {
    /// The images of all trees that were laid: containers may still have an overlay of before, with their files.
    pub(super) images: BTreeSet<Digest>,
    /// The trees of the overlays that may be there, by their names.
    overlays: BTreeMap<String, Vec<Tree>>,
    /// The number of the newest overlay.
    last: u64,
}

impl Laid {
    /// Reads the record; an empty one if there is none.
    pub(super) fn read(file: &Path) -> anyhow::Result<Self> {
        Ok(whole_file::read_json(file)?.unwrap_or_default())
    }

    pub(super) fn write(&self, file: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(file, 0o600, self)
    }

    /// Notes an overlay that is about to be laid; returns the record with it, and its name. No overlay that is there has this name, also if
    /// the record of them was lost.
    pub(super) fn with(&self, trees: &[Tree], there: &[String]) -> (Self, String) {
        let mut next = self.clone();
        let name = loop {
            next.last += 1;
            let name = format!("extensions-{}", next.last);
            if !there.contains(&name) {
                break name;
            }
        };
        next.images.extend(trees.iter().map(|tree| tree.image));
        next.overlays.insert(name.clone(), trees.to_vec());
        (next, name)
    }

    /// Returns the trees of an overlay.
    pub(super) fn trees(&self, name: &str) -> Option<&Vec<Tree>> {
        self.overlays.get(name)
    }

    /// Forgets all overlays but this one; their images stay.
    pub(super) fn keep_only(&mut self, name: Option<&str>) {
        self.overlays.retain(|other, _| Some(&**other) == name);
    }
}
