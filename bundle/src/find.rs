//! Finds the bundle on a medium: the medium itself, a directory on it, or a file.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;

use crate::archive::header;
use crate::files::Files;
use crate::limits::quote;
use crate::member::{LAYOUT, Member, Name};

/// The directory of a medium that holds its bundle, or is the bundle.
pub const FOLDER: &str = "instar-bundle";

/// Limit on the entries of the medium that are looked at.
const MOST_ENTRIES: usize = 1000;

/// The content of a medium.
#[derive(Debug)]
pub enum OnMedium {
    /// Nothing that looks like a bundle.
    Nothing,
    /// One bundle, with its name on the medium; empty if the medium itself is one.
    One(String, Files),
    /// Several, by their names. Which one is meant, nobody can know.
    Several(Vec<String>),
}

/// Looks for bundles in the top directory of a medium. Nothing is verified yet.
///
/// # Errors
/// The medium cannot be read.
pub fn find(medium: OwnedFd) -> io::Result<OnMedium> {
    if is_directory_of_bundle(&medium) {
        return Ok(OnMedium::One(String::new(), Files::directory(medium)));
    }
    let mut found = Vec::new();
    for entry in Dir::read_from(&medium)?.take(MOST_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        // An entry that cannot be opened, or is a link out of the medium, is none.
        if let Ok(opened) = open(&medium, name)
            && let Some(files) = as_bundle(opened)
        {
            found.push((quote(name.to_bytes()), files));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(match found.len() {
        0 => OnMedium::Nothing,
        1 => {
            let (name, files) = found.remove(0);
            OnMedium::One(name, files)
        }
        _ => OnMedium::Several(found.into_iter().map(|(name, _)| name).collect()),
    })
}

/// Opens the directory [`FOLDER`] of a medium, if there is one.
pub fn folder(medium: &OwnedFd) -> Option<OwnedFd> {
    let opened = open(medium, c"instar-bundle").ok()?;
    let stat = fstat(&opened).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Directory).then_some(opened)
}

fn open(directory: &OwnedFd, path: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    // A pipe would block without NONBLOCK.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(directory, path, flags, Mode::empty(), resolve)
}

fn is_directory_of_bundle(directory: &OwnedFd) -> bool {
    open(directory, c"instar-bundle.json").is_ok()
}

fn as_bundle(opened: OwnedFd) -> Option<Files> {
    let stat = fstat(&opened).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => is_directory_of_bundle(&opened).then(|| Files::directory(opened)),
        FileType::RegularFile => {
            let file = File::from(opened);
            begins_as_bundle(&file).then(|| Files::archive(file))
        }
        _ => None,
    }
}

/// Whether a file begins with the header that all bundles begin with.
fn begins_as_bundle(file: &File) -> bool {
    let name = Name::Layout;
    let expected = header(Member {
        name,
        size: LAYOUT.len() as u64,
    });
    let mut found = [0; 512];
    let read = std::os::unix::fs::FileExt::read_exact_at(file, &mut found, 0);
    read.is_ok() && found == expected
}
