//! Replaces files whole or not at all, even at a power cut.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::removal;

/// Gives a file new content: written beside it, flushed, and renamed over it. A missing directory is made.
///
/// After a power cut the file has the old content or the new one; a file `NAME.new` may be left, and the next call replaces it.
pub fn replace(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let directory = directory_of(path);
    fs::create_dir_all(directory)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = directory.join(name);
    // A leftover has its own mode.
    removal::file(&new)?;
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(directory)?.sync_all()
}

/// The directory of a file; of a bare name the one that the program runs in.
fn directory_of(path: &Path) -> &Path {
    let named = path.parent().filter(|it| !it.as_os_str().is_empty());
    named.unwrap_or(Path::new("."))
}

/// The same with JSON as its content.
pub fn replace_json(path: &Path, mode: u32, content: &impl Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_vec(content)?;
    replace(path, mode, &json).with_context(|| format!("write {}", path.display()))
}

/// Reads a JSON file; `None` if it does not exist.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    match fs::read(path) {
        Ok(json) => serde_json::from_slice(&json)
            .map(Some)
            .with_context(|| format!("parse {}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn content_and_mode_are_the_new_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/config.yaml");
        replace(&path, 0o644, b"old").unwrap();
        // The leftover of a power cut.
        fs::write(directory.path().join("below/config.yaml.new"), "half").unwrap();
        replace(&path, 0o600, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let entries = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(entries, 1);
    }

    #[test]
    fn a_bare_name_is_in_the_directory_that_the_program_runs_in() {
        for (path, directory) in [
            ("site.key", "."),
            ("keys/site.key", "keys"),
            ("/site.key", "/"),
        ] {
            assert_eq!(directory_of(Path::new(path)), Path::new(directory));
        }
    }
}
