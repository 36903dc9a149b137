//! Files that only their owner may read: they may hold secrets.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use instar_base::whole_file::Replacement;
use instar_client::{Failure, FailureKind};

/// Their owner alone may read and write them.
const MODE: u32 = 0o600;

/// Begins new content for the file, which stays as it is until that is whole.
pub(crate) fn replacement(path: &Path) -> io::Result<Replacement> {
    Replacement::create(path, MODE)
}

/// A file that is being written.
pub(crate) enum PrivateFile {
    /// There was none, or it is no file on a disk, such as a pipe.
    New(File),
    /// It takes the place of the one that is there once it is whole: that one may be open to others, and its readers keep it open.
    Replacing(Replacement),
}

/// Begins the file. An existing one is replaced only with `force`, and by [`PrivateFile::finish`].
pub(crate) fn create(path: &Path, force: bool) -> Result<PrivateFile, Failure> {
    let begun = match force {
        true => begin_anew(path),
        false => File::options()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(path)
            .map(PrivateFile::New),
    };
    begun.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => unwritten(path, error),
    })
}

fn begin_anew(path: &Path) -> io::Result<PrivateFile> {
    match path.metadata() {
        // The file behind a link is replaced, and not the link.
        Ok(there) if there.is_file() => {
            replacement(&path.canonicalize()?).map(PrivateFile::Replacing)
        }
        Ok(_) => File::options().write(true).open(path).map(PrivateFile::New),
        Err(_) => replacement(path).map(PrivateFile::Replacing),
    }
}

/// Writes the file as a whole. An existing one is replaced only with `force`.
pub(crate) fn write(path: &Path, force: bool, content: &[u8]) -> Result<(), Failure> {
    let mut file = create(path, force)?;
    let written = file.write_all(content).and_then(|()| file.finish());
    written.map_err(|error| unwritten(path, error))
}

fn unwritten(path: &Path, error: io::Error) -> Failure {
    Failure::io(format!("cannot write {}", path.display()), error)
}

impl PrivateFile {
    /// Puts the file in its place: all of it is written.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            // A pipe has nothing to sync.
            Self::New(file) if file.metadata()?.is_file() => file.sync_all(),
            Self::New(_) => Ok(()),
            Self::Replacing(new) => new.finish(),
        }
    }
}

impl Write for PrivateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::New(file) => file.write(bytes),
            Self::Replacing(new) => new.write_all(bytes).map(|()| bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::New(file) => file.flush(),
            // It has no buffer.
            Self::Replacing(_) => Ok(()),
        }
    }
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
    let mut new = replacement(path)?;
    new.write_all(content.as_bytes())?;
    new.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_others_may_read_gets_no_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, "old").unwrap();
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, readable).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for by in [&path, &link] {
            let refused = write(by, false, b"secret").unwrap_err();
            assert_eq!(refused.kind(), FailureKind::Refused);
            let mut new = create(by, true).unwrap();
            new.write_all(b"secret").unwrap();
            // Whole, or as it was.
            assert_ne!(std::fs::read(&path).unwrap(), b"secret");
            new.finish().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"secret");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, MODE);
            write(&path, true, b"old").unwrap();
        }
        assert!(link.symlink_metadata().unwrap().is_symlink());
        write(Path::new("/dev/null"), true, b"secret").unwrap();
    }
}
