//! The members of the workspace.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns the folder of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folders of all crates, as the workspace's manifest lists them.
///
/// # Errors
/// The manifest cannot be read.
pub fn members() -> io::Result<Vec<String>> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let (_, members) = manifest.split_once("\nmembers = [").unwrap_or_default();
    let (members, _) = members.split_once(']').unwrap_or_default();
    let folders = members.split(',').map(|line| line.trim().trim_matches('"'));
    let folders = folders.filter(|folder| !folder.is_empty());
    Ok(folders.map(str::to_owned).collect())
}
