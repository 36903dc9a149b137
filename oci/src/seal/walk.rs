//! Walks a tree in the order of its names, without following a link and without paths: a path may be longer than the kernel takes.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};

use super::contents::Inode;
use super::entry::Metadata;

/// Limit on the names of one directory, in bytes: an image may not take a machine's memory by them.
const MOST_NAMES: usize = 12 << 20;

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// An entry that the walk has come to.
pub(super) struct Visited {
    pub(super) place: Place,
    pub(super) metadata: Metadata,
    /// The open file; only of regular files.
    pub(super) file: Option<File>,
    /// Its inode, which other names may have, too.
    pub(super) inode: Inode,
    /// Number of names of its inode.
    pub(super) links: u64,
}

/// The place of an entry in a tree.
#[derive(Clone)]
pub(crate) struct Place {
    /// The path from the root; that of the root itself is empty.
    pub(crate) path: Vec<u8>,
    /// Its directory.
    pub(crate) parent: Arc<OwnedFd>,
}

impl Place {
    /// The last component of the path.
    pub(crate) fn name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or(&[])
    }
}

/// A directory that the walk is in.
struct Level {
    directory: Arc<OwnedFd>,
    names: std::vec::IntoIter<CString>,
    /// Length of its path.
    path: usize,
}

/// A walk over a tree: first its root, then each directory before its content.
pub(super) struct Walk {
    levels: Vec<Level>,
    path: Vec<u8>,
    root: Option<Visited>,
}

impl Walk {
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        let directory = rustix::fs::open(root, READ | OFlags::DIRECTORY, Mode::empty())?;
        let directory = Arc::new(directory);
        let stat = fstat(&directory)?;
        let root = Visited {
            metadata: Metadata::of(directory.as_fd(), &stat)?,
            place: Place {
                path: Vec::new(),
                parent: directory.clone(),
            },
            file: None,
            inode: inode(&stat),
            links: 1,
        };
        let mut walk = Walk {
            levels: Vec::new(),
            path: Vec::new(),
            root: Some(root),
        };
        walk.enter(directory)?;
        Ok(walk)
    }

    fn enter(&mut self, directory: Arc<OwnedFd>) -> io::Result<()> {
        self.levels.push(Level {
            names: names(&directory)?.into_iter(),
            directory,
            path: self.path.len(),
        });
        Ok(())
    }

    /// The next entry; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Visited>> {
        if let Some(root) = self.root.take() {
            return Ok(Some(root));
        }
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            self.path.truncate(level.path);
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.as_bytes());
            let parent = level.directory.clone();
            return self.visit(parent, &name).map(Some);
        }
    }

    fn visit(&mut self, parent: Arc<OwnedFd>, name: &CString) -> io::Result<Visited> {
        let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let (metadata, file) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = openat(&parent, name, READ | OFlags::DIRECTORY, Mode::empty())?;
                let metadata = Metadata::of(directory.as_fd(), &stat)?;
                self.enter(Arc::new(directory))?;
                (metadata, None)
            }
            FileType::RegularFile => {
                let file = openat(&parent, name, READ, Mode::empty())?;
                (Metadata::of(file.as_fd(), &stat)?, Some(File::from(file)))
            }
            FileType::Symlink => {
                let target = readlinkat(&parent, name, Vec::new())?;
                (Metadata::unopened(&stat, target.into_bytes()), None)
            }
            _ => (Metadata::unopened(&stat, Vec::new()), None),
        };
        Ok(Visited {
            place: Place {
                path: self.path.clone(),
                parent,
            },
            metadata,
            file,
            inode: inode(&stat),
            links: stat.st_nlink as u64,
        })
    }
}

fn inode(stat: &Stat) -> Inode {
    (stat.st_dev, stat.st_ino)
}

/// The names in a directory, in their order.
fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        bytes += name.to_bytes().len() + size_of::<CString>();
        if bytes > MOST_NAMES {
            return Err(io::Error::other("a directory of it has too many names"));
        }
        names.push(name.to_owned());
    }
    names.sort_unstable();
    Ok(names)
}
