//! Files that only their owner may read: they may hold secrets.

use std::fs::File;
use std::io;
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

/// Creates the file. An existing one is replaced only with `force`.
pub(crate) fn create(path: &Path, force: bool) -> Result<File, Failure> {
    let name = path.display();
    let mut options = File::options();
    options.write(true).mode(MODE);
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
    let mut new = replacement(path)?;
    new.write_all(content.as_bytes())?;
    new.finish()
}
