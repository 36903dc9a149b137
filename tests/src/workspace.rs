//! Where things are in the repository.

use std::path::{Path, PathBuf};

/// The repository's root. Tests run from a checkout, so that the place where they were compiled is the place to look.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_owned)
}

/// Where builds put things.
pub fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_root().join("target"), PathBuf::from)
}
