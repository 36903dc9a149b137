//! Replaces files whole or not at all, even at a power cut.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::removal;

/// Gives a file new content: written beside it, flushed, and renamed over it. A missing directory is made.
///
/// After a power cut the file has the old content or the new one; a file `NAME.new` may be left, and the next call replaces it.
pub fn replace(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory_of(path))?;
    let mut new = Replacement::create(path, mode)?;
    new.write_all(content)?;
    new.finish()
}

/// New content for a file, beside it as `NAME.new` until it is whole. An unfinished one is removed, and the file stays as it was.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    new: PathBuf,
    path: PathBuf,
    /// Whether it has taken the place of the file.
    is_in_place: bool,
}

impl Replacement {
    /// Begins the new content of this file, whose directory is there.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        // A leftover has its own mode.
        removal::file(&new)?;
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&new)?;
        Ok(Self {
            file,
            new,
            path: path.to_owned(),
            is_in_place: false,
        })
    }

    /// Appends to the new content.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Replaces the file by the new content, which is whole now.
    pub fn finish(self) -> io::Result<()> {
        self.finish_if(|| true)
    }

    /// The same if it still may once the content is on the disk, which can take minutes; otherwise the file stays as it was.
    pub fn finish_if(mut self, may_replace: impl FnOnce() -> bool) -> io::Result<()> {
        self.file.sync_all()?;
        if !may_replace() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        fs::rename(&self.new, &self.path)?;
        self.is_in_place = true;
        File::open(directory_of(&self.path))?.sync_all()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_in_place {
            // A leftover does no harm: the next one takes its place.
            let _ = fs::remove_file(&self.new);
        }
    }
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

    #[test]
    fn a_file_stays_as_it_was_until_the_new_one_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etcd.db");
        fs::write(&path, "last week's").unwrap();
        let entries = || fs::read_dir(directory.path()).unwrap().count();
        for is_whole in [false, true] {
            let mut new = Replacement::create(&path, 0o600).unwrap();
            new.write_all(b"today's").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"last week's");
            if is_whole {
                new.finish().unwrap();
            } else {
                drop(new);
            }
            assert_eq!(entries(), 1);
        }
        assert_eq!(fs::read(&path).unwrap(), b"today's");
    }
}
