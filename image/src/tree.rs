//! A directory tree as a value: the future content of a filesystem, an archive or an image layer.
//!
//! Owner (root), times (none) and order (by path) are not part of it, so two equal trees always become the same bytes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};

/// The content at one path of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A directory.
    Directory,
    /// A regular file with these bytes.
    File(Arc<[u8]>),
    /// A symbolic link to this target.
    Symlink(String),
    /// A character device.
    CharacterDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// One path's content and permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Permission bits, e.g. `0o755`.
    pub mode: u32,
    /// The content.
    pub content: Content,
}

/// A tree of paths relative to its root (`usr/bin/crun`). Parents exist: adding a path adds them as directories of mode 0755.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// An empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory of mode 0755; one that exists already keeps its mode.
    ///
    /// # Errors
    /// The path is malformed, or has another content.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.directory_with_mode(path, 0o755)
    }

    /// Adds a directory with these permission bits; one that exists already keeps its mode.
    ///
    /// # Errors
    /// The path is malformed, or has another content.
    pub fn directory_with_mode(&mut self, path: &str, mode: u32) -> Result<()> {
        self.insert(path, mode, Content::Directory)
    }

    /// Adds a file.
    ///
    /// # Errors
    /// The path is malformed or taken.
    pub fn file(&mut self, path: &str, mode: u32, bytes: impl Into<Arc<[u8]>>) -> Result<()> {
        self.insert(path, mode, Content::File(bytes.into()))
    }

    /// Adds a file with the bytes of `source`, a file of the building machine.
    ///
    /// # Errors
    /// The path is malformed or taken, or `source` cannot be read.
    pub fn file_from(&mut self, path: &str, mode: u32, source: &Path) -> Result<()> {
        let bytes = fs::read(source)
            .with_context(|| format!("cannot read {} for {path} of the image", source.display()))?;
        self.file(path, mode, bytes)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// The path is malformed or taken.
    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.insert(path, 0o777, Content::Symlink(target.to_owned()))
    }

    /// Adds a character device.
    ///
    /// # Errors
    /// The path is malformed or taken.
    pub fn character_device(
        &mut self,
        path: &str,
        mode: u32,
        major: u32,
        minor: u32,
    ) -> Result<()> {
        self.insert(path, mode, Content::CharacterDevice { major, minor })
    }

    /// All nodes in the order of their paths, parents before children.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// The node at this path, links not followed.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// The sum of all files' bytes below `prefix` (`""` for the whole tree).
    #[must_use]
    pub fn bytes_below(&self, prefix: &str) -> u64 {
        self.iter()
            .filter(|(path, _)| path.starts_with(prefix))
            .map(|(_, node)| match &node.content {
                Content::File(bytes) => bytes.len() as u64,
                _ => 0,
            })
            .sum()
    }

    fn insert(&mut self, path: &str, mode: u32, content: Content) -> Result<()> {
        check_path(path)?;
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent)?;
        }
        match self.nodes.entry(path.to_owned()) {
            Entry::Vacant(place) => {
                place.insert(Node { mode, content });
            }
            Entry::Occupied(there) if there.get().content == content => {}
            Entry::Occupied(_) => bail!("the image already has something else at {path}"),
        }
        Ok(())
    }
}

fn check_path(path: &str) -> Result<()> {
    let plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    ensure!(plain, "{path:?} is not a plain relative path");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parents_appear_before_their_children() {
        let mut tree = Tree::new();
        tree.file("usr/bin/crun", 0o755, *b"x").unwrap();
        tree.directory("usr").unwrap();
        tree.directory("usr-local").unwrap();
        let paths: Vec<_> = tree.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["usr", "usr-local", "usr/bin", "usr/bin/crun"]);
    }

    #[test]
    fn a_path_is_taken_once() {
        let mut tree = Tree::new();
        tree.file("etc/hosts", 0o644, *b"a").unwrap();
        tree.file("etc/hosts", 0o644, *b"a").unwrap();
        tree.file("etc/hosts", 0o644, *b"b").unwrap_err();
        tree.file("etc/hosts/below", 0o644, *b"b").unwrap_err();
    }

    #[test]
    fn paths_cannot_leave_the_tree() {
        for path in ["", "/etc", "../etc", "a/../b", "a//b", "./a"] {
            Tree::new().directory(path).unwrap_err();
        }
    }
}
