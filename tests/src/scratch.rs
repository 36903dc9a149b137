//! A test's own directory: kept when it fails, removed when it passes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::workspace::target_directory;

/// Number of a console's last lines that a failure shows.
const TAIL_LINES: usize = 40;

/// A test's directory. Clones are the same directory.
#[derive(Debug, Clone)]
pub struct Scratch {
    path: Arc<Path>,
}

impl Scratch {
    /// Makes the directory, empty.
    pub fn make(test: &str) -> Result<Self> {
        Self::at(&target_directory().join("e2e").join(test.replace("::", ".")))
    }

    /// Makes a scratch directory of this path, empty.
    pub fn at(path: &Path) -> Result<Self> {
        if path.exists() {
            remove_tree(path).with_context(|| format!("cannot clear {}", path.display()))?;
        }
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path: path.into() })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a directory below as a scratch directory of its own, for a second object with fixed file names.
    pub fn below(&self, name: &str) -> Result<Self> {
        let path = self.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path: path.into() })
    }

    /// Writes a file in the directory.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Returns the ends of all consoles and logs below the directory, for a person who looks into a failure.
    pub(crate) fn tails(&self) -> String {
        let mut text = String::new();
        for log in logs_below(&self.path) {
            let content = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = content.lines().collect();
            if lines.is_empty() {
                continue;
            }
            text.push_str(&format!("  the end of {}:\n", log.display()));
            for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
                let printable: String = line
                    .chars()
                    .filter(|c| !c.is_control() || *c == '\t')
                    .collect();
                text.push_str(&format!("  | {printable}\n"));
            }
        }
        text
    }

    /// Removes the directory, unless `INSTAR_KEEP` is set.
    pub(crate) fn remove(&self) -> Result<()> {
        if std::env::var_os(instar_qemu::KEEP_VARIABLE).is_some_and(|value| !value.is_empty()) {
            return Ok(());
        }
        remove_tree(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// Removes a directory with all below it. Copies of a node's files include directories that not even their owner may
/// write to, from which only root could remove files.
fn remove_tree(directory: &Path) -> std::io::Result<()> {
    make_writable(directory)?;
    fs::remove_dir_all(directory)
}

fn make_writable(directory: &Path) -> std::io::Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_writable(&entry.path())?;
        }
    }
    Ok(())
}

fn logs_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(logs_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "log") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn starts_empty_and_shows_the_ends_of_logs() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("t");
        let scratch = Scratch::at(&path).unwrap();
        fs::create_dir(scratch.join("node")).unwrap();
        let many: String = (0..100)
            .map(|number| format!("line {number}\u{1b}\r\n"))
            .collect();
        scratch.write("node/console.log", many).unwrap();
        scratch.write("node/other.txt", "not a log").unwrap();
        let tails = scratch.tails();
        assert!(tails.ends_with("  | line 99\n"), "{tails}");
        assert!(
            tails.contains("line 60\n") && !tails.contains("line 59\n"),
            "{tails}"
        );
        assert!(!tails.contains("not a log"));
        let again = Scratch::at(&path).unwrap();
        assert_eq!(again.tails(), "");
        again.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn directories_that_nobody_may_write_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("t");
        let scratch = Scratch::at(&path).unwrap();
        fs::create_dir_all(scratch.join("sealed/inside")).unwrap();
        scratch.write("sealed/inside/file", "content").unwrap();
        for sealed in ["sealed/inside", "sealed"] {
            let nobody = fs::Permissions::from_mode(0o000);
            fs::set_permissions(scratch.join(sealed), nobody).unwrap();
        }
        scratch.remove().unwrap();
        assert!(!path.exists());
    }
}
