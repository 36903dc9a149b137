//! An entry of a tree, and the hashes of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Stat, fgetxattr, flistxattr};
use rustix::io::Errno;

/// The hash of a file's content.
pub(crate) type ContentHash = blake3::Hash;

/// Everything about an entry but its path and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// Type and mode, as in `st_mode`.
    mode: u32,
    uid: u32,
    gid: u32,
    /// Bytes of a regular file; 0 for everything else, whose size is the file system's.
    size: u64,
    modified: (i64, i64),
    /// The target of a symbolic link.
    target: Vec<u8>,
    /// Extended attributes, by name.
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Metadata {
    /// The metadata of an open file or directory.
    pub(super) fn of(file: BorrowedFd<'_>, stat: &Stat) -> io::Result<Self> {
        let mut metadata = Metadata::by_stat(stat);
        metadata.attributes = attributes(file)?;
        Ok(metadata)
    }

    /// The metadata of an entry that is not opened: a link, or a fifo. The unpacking gives these no extended attributes.
    pub(super) fn unopened(stat: &Stat, target: Vec<u8>) -> Self {
        Metadata {
            target,
            ..Metadata::by_stat(stat)
        }
    }

    fn by_stat(stat: &Stat) -> Self {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Metadata {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: if is_file { stat.st_size as u64 } else { 0 },
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            target: Vec::new(),
            attributes: Vec::new(),
        }
    }

    /// Bytes of a regular file.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The hash of an entry at this path.
    pub(super) fn hash_at(&self, path: &[u8], content: Option<&ContentHash>) -> blake3::Hash {
        let mut hasher = Fields::new(b"entry");
        hasher.add(path);
        self.add_to(&mut hasher, content);
        hasher.0.finalize()
    }

    /// The hash of a file wherever it is: two files of the same hash can be one.
    pub(crate) fn hash_anywhere(&self, content: &ContentHash) -> blake3::Hash {
        let mut hasher = Fields::new(b"object");
        self.add_to(&mut hasher, Some(content));
        hasher.0.finalize()
    }

    fn add_to(&self, hasher: &mut Fields, content: Option<&ContentHash>) {
        for number in [
            u64::from(self.mode),
            u64::from(self.uid),
            u64::from(self.gid),
            self.size,
            self.modified.0 as u64,
            self.modified.1 as u64,
        ] {
            hasher.add(&number.to_le_bytes());
        }
        hasher.add(&self.target);
        hasher.add(&(self.attributes.len() as u64).to_le_bytes());
        for (name, value) in &self.attributes {
            hasher.add(name);
            hasher.add(value);
        }
        hasher.add(content.map_or(&[], |content| content.as_bytes().as_slice()));
    }
}

/// Hashes fields so that no two lists of fields have the same bytes: each with its length in front.
struct Fields(blake3::Hasher);

impl Fields {
    fn new(kind: &[u8]) -> Self {
        let mut fields = Fields(blake3::Hasher::new());
        fields.add(kind);
        fields
    }

    fn add(&mut self, field: &[u8]) {
        self.0.update(&(field.len() as u64).to_le_bytes());
        self.0.update(field);
    }
}

/// Size limit of a list of names and of a value: the kernel's (xattr(7)).
const LARGEST_ATTRIBUTE: usize = 64 << 10;

fn attributes(file: BorrowedFd<'_>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have none, and one short call says so.
    match flistxattr(file, &mut [0_u8; 0]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut names = vec![0; LARGEST_ATTRIBUTE];
    let length = flistxattr(file.as_fd(), &mut names)?;
    let mut value = vec![0; LARGEST_ATTRIBUTE];
    let mut found = Vec::new();
    for name in names[..length].split(|&byte| byte == 0) {
        if name.is_empty() {
            continue;
        }
        let length = fgetxattr(file, name, &mut value)?;
        found.push((name.to_vec(), value[..length].to_vec()));
    }
    found.sort();
    Ok(found)
}
