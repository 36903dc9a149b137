//! The entries of a directory such as /etc, as values.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::error::EtcFilesError;
use crate::values::EtcFile;

/// Entries by their paths below the directory.
pub(super) type Entries = BTreeMap<PathBuf, Entry>;

/// An entry below /etc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Directory,
    Link(PathBuf),
    /// Permission bits and content.
    File(u32, Vec<u8>),
}

impl Entry {
    /// Makes the entry at a path where nothing is.
    pub(super) fn make(&self, path: &Path) -> io::Result<()> {
        let mode = match self {
            Entry::Directory => {
                fs::create_dir(path)?;
                0o755
            }
            Entry::Link(target) => return symlink(target, path),
            Entry::File(mode, content) => {
                let mut options = fs::File::options();
                // At no time may more users read the file than its mode allows.
                let options = options.write(true).create_new(true).mode(mode & 0o600);
                options.open(path)?.write_all(content)?;
                *mode
            }
        };
        fs::set_permissions(path, Permissions::from_mode(mode))
    }
}

/// Reads the entries of a directory.
pub(super) fn read(root: &Path) -> io::Result<Entries> {
    let mut entries = Entries::new();
    list(root, Path::new(""), &mut entries)?;
    Ok(entries)
}

fn list(root: &Path, below: &Path, entries: &mut Entries) -> io::Result<()> {
    for found in fs::read_dir(root.join(below))? {
        let found = found?;
        let (path, kind) = (below.join(found.file_name()), found.file_type()?);
        if kind.is_dir() {
            list(root, &path, entries)?;
            entries.insert(path, Entry::Directory);
        } else if kind.is_symlink() {
            entries.insert(path, Entry::Link(fs::read_link(found.path())?));
        } else if kind.is_file() {
            let mode = found.metadata()?.permissions().mode() & 0o7777;
            entries.insert(path, Entry::File(mode, fs::read(found.path())?));
        }
    }
    Ok(())
}

/// Returns the entries of the image with these files over them.
///
/// # Errors
/// A file has no place: something else is there.
pub(super) fn with<'a>(
    image: &Entries,
    files: impl IntoIterator<Item = &'a EtcFile>,
) -> Result<Entries, EtcFilesError> {
    let mut wanted = image.clone();
    for file in files {
        let path = PathBuf::from(&file.name);
        let is_free = !matches!(wanted.get(&path), Some(Entry::Directory | Entry::Link(_)));
        let mut above = path.ancestors().skip(1);
        if !is_free || above.any(|it| !matches!(wanted.get(it), None | Some(Entry::Directory))) {
            return Err(EtcFilesError::InTheWay(file.name.clone()));
        }
        let above = path.ancestors().skip(1);
        for directory in above.filter(|it| !it.as_os_str().is_empty()) {
            wanted.insert(directory.to_owned(), Entry::Directory);
        }
        let entry = Entry::File(file.mode, file.contents.clone().into_bytes());
        wanted.insert(path, entry);
    }
    Ok(wanted)
}
