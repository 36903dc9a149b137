//! The form as a directory: the same files, opened without following any link out of it or onto anything but a regular file. A stick is
//! written by others.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;

use crate::fault::{Fault, Place, Refused};
use crate::limits::quote;
use crate::member::{Member, Name};
use crate::pace::Pace;

/// Size of the pieces in which content is read.
const PIECE: usize = 64 << 10;

/// Whether a desktop makes files of this name without being asked: macOS beside each file that it copies to FAT, others in directories that they
/// show. No blob has such a name.
fn is_of_a_desktop(name: &str) -> bool {
    name.starts_with("._") || matches!(name, ".DS_Store" | "Thumbs.db" | "desktop.ini")
}

/// A directory that is read as a bundle.
#[derive(Debug, Clone)]
pub struct Directory {
    directory: Arc<OwnedFd>,
    pace: Pace,
}

fn place(what: impl ToString) -> Place {
    Place {
        what: what.to_string(),
        at: None,
    }
}

impl Directory {
    pub(crate) fn new(directory: OwnedFd) -> Self {
        Directory {
            directory: Arc::new(directory),
            pace: Pace::default(),
        }
    }

    fn open_below(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Fault> {
        // A pipe would block without NONBLOCK.
        let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        openat2(&*self.directory, path, flags, Mode::empty(), resolve).map_err(
            |error| match error {
                Errno::NOENT => Fault::Missing,
                Errno::LOOP | Errno::XDEV | Errno::NOTDIR | Errno::NXIO => Fault::NotAFile,
                other => Fault::Io(other.into()),
            },
        )
    }

    /// Opens a file, and returns it with its size.
    pub(crate) fn open(&self, name: Name) -> Result<(File, u64), Fault> {
        let file = self.open_below(&name.to_string(), OFlags::empty())?;
        let stat = fstat(&file).map_err(|error| Fault::Io(error.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((File::from(file), stat.st_size.try_into().unwrap_or(0))),
            _ => Err(Fault::NotAFile),
        }
    }

    /// The size of a file, which nothing else tells.
    pub(crate) fn announced(&self, name: Name) -> Result<u64, Refused> {
        let opened = self.open(name);
        let opened = opened.map_err(|fault| match (name, fault) {
            (Name::Layout, Fault::Missing) => Fault::NotABundle,
            (_, fault) => fault,
        });
        Ok(opened.map_err(|it| it.at(place(name)))?.1)
    }

    /// Reads the next bytes of a file that was opened before.
    pub(crate) fn read_on(&self, file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
        self.pace.of(|| file.read(buffer))
    }

    /// Reads a file, piece by piece.
    pub(crate) fn read(&self, member: Member, sink: &mut dyn FnMut(&[u8])) -> Result<(), Refused> {
        let Member { name, size } = member;
        let mut read = || {
            let (mut file, found) = self.open(name)?;
            if found != size {
                return Err(Fault::Size {
                    expected: size,
                    found,
                });
            }
            let mut piece = vec![0; size.min(PIECE as u64) as usize];
            let mut left = size;
            while left > 0 {
                let length = left.min(PIECE as u64) as usize;
                let read = || {
                    let read = file.read_exact(&mut piece[..length]);
                    read.map(|()| length)
                };
                self.pace.of(read).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => Fault::Incomplete,
                    _ => Fault::Io(error),
                })?;
                sink(&piece[..length]);
                left -= length as u64;
            }
            Ok(())
        };
        read().map_err(|it| it.at(place(name)))
    }

    /// Checks that there is no other file among the blobs, but those that desktops leave in each directory that they copy or show. Files beside
    /// the bundle, on the same stick, are never read, and neither are these.
    pub(crate) fn finish(&self, blobs: &BTreeSet<String>) -> Result<(), Refused> {
        let algorithms = BTreeSet::from(["sha256".to_owned()]);
        for (path, known) in [("blobs", &algorithms), ("blobs/sha256", blobs)] {
            let stranger = self
                .stranger(path, known)
                .map_err(|it| it.at(place(path)))?;
            if let Some(name) = stranger {
                return Err(Fault::Stranger(name).at(place(path)));
            }
        }
        Ok(())
    }

    fn stranger(&self, path: &str, known: &BTreeSet<String>) -> Result<Option<String>, Fault> {
        let directory = self.open_below(path, OFlags::DIRECTORY)?;
        let failed = |error: Errno| Fault::Io(error.into());
        for entry in Dir::read_from(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = String::from_utf8_lossy(entry.file_name().to_bytes());
            if !matches!(&*name, "." | "..") && !is_of_a_desktop(&name) && !known.contains(&*name) {
                return Ok(Some(quote(name.as_bytes())));
            }
        }
        Ok(None)
    }
}
