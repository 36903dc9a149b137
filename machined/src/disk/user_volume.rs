//! User volumes: directories on EPHEMERAL for data that outlives containers, upgrades and reboots.
//!
//! A new volume is empty and belongs to root; the first container that may write to it becomes its owner (`containers/volume.rs`). An
//! existing volume is left as it is.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Why a user volume cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum UserVolumeError {
    /// The path is taken by another kind of file.
    #[error("{0:?} is not a directory; move it away, and the volume is made with the next boot")]
    NotADirectory(PathBuf),
    /// The kernel refused to make the directory.
    #[error("cannot make the directory {path:?}")]
    Make {
        /// The volume's path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Makes the directory of a user volume if it is missing.
pub fn make_user_volume(path: &Path) -> Result<(), UserVolumeError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path);
    match (made, fs::symlink_metadata(path)) {
        (_, Ok(there)) if there.is_dir() => Ok(()),
        (_, Ok(_)) => Err(UserVolumeError::NotADirectory(path.to_owned())),
        (Err(source), _) | (Ok(()), Err(source)) => Err(UserVolumeError::Make {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_volume_is_made_once_and_kept() {
        let var = tempfile::tempdir().unwrap();
        let volume = var.path().join("mnt/data");
        make_user_volume(&volume).unwrap();
        fs::write(volume.join("file"), "x").unwrap();
        make_user_volume(&volume).unwrap();
        assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "x");
    }

    #[test]
    fn what_is_no_directory_is_not_touched() {
        let var = tempfile::tempdir().unwrap();
        let file = var.path().join("file");
        fs::write(&file, "x").unwrap();
        let link = var.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        for path in [&file, &link] {
            let error = make_user_volume(path).unwrap_err();
            assert!(
                matches!(error, UserVolumeError::NotADirectory(_)),
                "{error}"
            );
        }
        let below = file.join("data");
        assert!(matches!(
            make_user_volume(&below).unwrap_err(),
            UserVolumeError::Make { .. }
        ));
    }
}
