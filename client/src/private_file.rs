//! Files that only their owner may read: they may hold secrets.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use instar_client::{Failure, FailureKind};

/// Creates the file. An existing one is replaced only with `force`.
pub(crate) fn create(path: &Path, force: bool) -> Result<File, Failure> {
    let name = path.display();
    let mut options = File::options();
    options.write(true).mode(0o600);
    let opened = match force {
        true => options.create(true).truncate(true).open(path),
        false => options.create_new(true).open(path),
    };
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::io(format!("cannot write {name}"), error),
    })
}

/// Checks that [`create`] would not be refused, before a node is asked for something that would be lost then.
pub(crate) fn check_free(path: &Path, force: bool) -> Result<(), Failure> {
    match !force && path.symlink_metadata().is_ok() {
        true => Err(exists(path)),
        false => Ok(()),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::new(FailureKind::Refused, format!("{} exists", path.display()))
        .advise("replace it with --force")
}

/// Writes the file, never half: a new file replaces the old one, whatever mode that had.
pub(crate) fn replace(path: &Path, content: &str) -> io::Result<()> {
    let mut new = Replacement::create(path)?;
    new.write_all(content.as_bytes())?;
    new.finish()
}

/// New content for a file, beside it as `NAME.new` until it is whole. An unfinished one is removed, and the file stays as it was.
pub(crate) struct Replacement {
    file: File,
    new: PathBuf,
    path: PathBuf,
}

impl Replacement {
    /// Begins the new content of this file.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        // Usually there is no such file.
        let _ = std::fs::remove_file(&new);
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        Ok(Self {
            file,
            new,
            path: path.to_owned(),
        })
    }

    /// Appends to the new content.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Replaces the file by the new content, which is whole now.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.new, &self.path)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After `finish` there is none; and a leftover does no harm: the next one takes its place.
        let _ = std::fs::remove_file(&self.new);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_stays_as_it_was_until_the_new_one_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etcd.db");
        std::fs::write(&path, "last week's").unwrap();
        let entries = || std::fs::read_dir(directory.path()).unwrap().count();
        for is_whole in [false, true] {
            let mut new = Replacement::create(&path).unwrap();
            new.write_all(b"today's").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"last week's");
            if is_whole {
                new.finish().unwrap();
            } else {
                drop(new);
            }
            assert_eq!(entries(), 1);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"today's");
    }
}
