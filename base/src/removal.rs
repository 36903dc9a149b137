//! Removes what need not be there.

use std::fs;
use std::io;
use std::path::Path;

/// Removes a file; a missing one is fine.
pub fn file(path: &Path) -> io::Result<()> {
    or_missing(fs::remove_file(path))
}

/// Removes a directory and all below it; a missing one is fine. Does not follow links (std promises that).
pub fn tree(path: &Path) -> io::Result<()> {
    or_missing(fs::remove_dir_all(path))
}

fn or_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_what_is_missing_is_fine() {
        let directory = tempfile::tempdir().unwrap();
        let (tree_below, file_below) = (directory.path().join("tree"), directory.path().join("f"));
        fs::create_dir_all(tree_below.join("deep")).unwrap();
        fs::write(&file_below, "").unwrap();
        assert!(file(&tree_below).is_err());
        assert!(tree(&file_below.join("below")).is_err());
        for _ in 0..2 {
            tree(&tree_below).unwrap();
            file(&file_below).unwrap();
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
