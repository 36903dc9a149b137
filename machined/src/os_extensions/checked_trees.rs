//! The trees that were checked in this generation: an image is not walked through again at each look, and one that has been in force stays
//! usable while nobody can say whether it may be. A machined that starts again knows from a record in memory which ones were.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use instar_extension::OsExtension;
use serde::{Deserialize, Serialize};

use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::values::Digest;

/// The record.
const RECORD: &str = "/run/os-extensions/checked.json";

/// An extension's name and the digest of its image.
type Key = (String, Digest);

/// A tree that was checked: its root, and its files.
pub type CheckedTree = (PathBuf, OsExtension);

/// The trees that may be used; clones share them.
#[derive(Debug, Clone)]
pub struct CheckedTrees {
    record: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    trees: BTreeMap<Key, CheckedTree>,
    /// The roots of those that an earlier machined has checked, and this one has not read yet.
    of_before: BTreeMap<Key, PathBuf>,
}

/// A line of the record.
#[derive(Serialize, Deserialize)]
struct Line {
    name: String,
    image: Digest,
    tree: PathBuf,
}

impl State {
    fn lines(&self) -> Vec<Line> {
        let trees = self.trees.iter().map(|(key, (tree, _))| (key, tree));
        let lines = trees.chain(&self.of_before);
        let line = |((name, image), tree): (&Key, &PathBuf)| Line {
            name: name.clone(),
            image: *image,
            tree: tree.clone(),
        };
        lines.map(line).collect()
    }
}

impl CheckedTrees {
    /// Returns the trees whose record is this file, in memory that ends with the generation.
    pub fn at(record: PathBuf) -> Self {
        CheckedTrees {
            record,
            state: Arc::default(),
        }
    }

    /// Takes over what an earlier machined of this generation has checked.
    ///
    /// # Errors
    /// The record cannot be read: everything is checked anew.
    pub fn adopt(&self) -> anyhow::Result<()> {
        let lines: Vec<Line> = whole_file::read_json(&self.record)?.unwrap_or_default();
        let lines = lines.into_iter();
        self.state.locked().of_before = lines
            .map(|line| ((line.name, line.image), line.tree))
            .collect();
        Ok(())
    }

    /// Returns a tree that this machined has checked.
    pub fn get(&self, key: &Key) -> Option<CheckedTree> {
        self.state.locked().trees.get(key).cloned()
    }

    /// Returns the root of a tree that an earlier machined has checked: its files have to be read again.
    pub fn of_before(&self, key: &Key) -> Option<PathBuf> {
        self.state.locked().of_before.get(key).cloned()
    }

    /// Adds a tree.
    pub fn insert(&self, key: Key, tree: CheckedTree) {
        let mut state = self.state.locked();
        state.of_before.remove(&key);
        state.trees.insert(key, tree);
        self.write(&state);
    }

    /// Forgets all trees for which this is false.
    pub fn retain(&self, is_used: impl Fn(&Key) -> bool) {
        let mut state = self.state.locked();
        let before = state.trees.len() + state.of_before.len();
        state.trees.retain(|key, _| is_used(key));
        state.of_before.retain(|key, _| is_used(key));
        if state.trees.len() + state.of_before.len() != before {
            self.write(&state);
        }
    }

    fn write(&self, state: &State) {
        let written = whole_file::replace_json(&self.record, 0o600, &state.lines());
        if let Err(error) = written {
            tracing::warn!(
                "extensions: a machined that starts again checks them anew, the record of those that were is not written: {error:#}"
            );
        }
    }
}

impl Default for CheckedTrees {
    fn default() -> Self {
        Self::at(Path::new(RECORD).to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_machined_that_starts_again_knows_what_was_checked() {
        let memory = tempfile::tempdir().unwrap();
        let trees = || CheckedTrees::at(memory.path().join("checked.json"));
        let key = |name: &str| (name.to_owned(), Digest::of(name.as_bytes()));
        let checked = trees();
        for name in ["a", "b"] {
            let tree = (Path::new("/var").join(name), OsExtension::Usr);
            checked.insert(key(name), tree);
        }
        checked.retain(|(name, _)| name == "a");

        let again = trees();
        again.adopt().unwrap();
        assert_eq!(again.get(&key("a")), None, "its files are not read yet");
        assert_eq!(again.of_before(&key("a")), Some("/var/a".into()));
        assert_eq!(again.of_before(&key("b")), None);
        again.insert(key("a"), checked.get(&key("a")).unwrap());
        assert_eq!(again.of_before(&key("a")), None);

        let third = trees();
        third.adopt().unwrap();
        assert_eq!(third.of_before(&key("a")), Some("/var/a".into()));
        third.retain(|_| false);
        assert_eq!(third.of_before(&key("a")), None);
    }
}
