//! A directory as a tar archive, packed by gzip, in pieces: the format that `tar` and Talos's clients unpack.
//!
//! Only one piece is in memory at a time. Hidden files, and files that are neither regular, directory nor symbolic link, are left out.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

use super::view::{FileError, Found, Kind};
use super::walk::{Entry, Step, Walk};

/// Bytes of content in one piece.
const PIECE: usize = 64 * 1024;
/// Block size of a tar archive, in bytes.
const BLOCK: u64 = 512;
/// Limit on the content of a file that the kernel generates, in bytes: its size is unknown until it has been read into memory.
const MADE_UP: u64 = 1 << 20;
/// The name in the header of GNU's entries for names and link targets that don't fit into one.
const LONG: &[u8] = b"././@LongLink";

/// The file that is being packed.
struct Open {
    file: File,
    /// Bytes that its header has announced and that are not packed yet.
    left: u64,
    padding: usize,
}

/// An iterator over the pieces of the archive.
pub struct Archive {
    walk: Walk,
    open: Option<Open>,
    packer: Option<GzEncoder<Vec<u8>>>,
    piece: Vec<u8>,
}

impl Archive {
    /// Makes the archive of every file of a walk.
    pub fn of(walk: Walk) -> Self {
        Archive {
            walk,
            open: None,
            packer: Some(GzEncoder::new(Vec::new(), Compression::fast())),
            piece: Vec::new(),
        }
    }

    /// Packs the next piece; returns false at the end.
    fn advance(&mut self, packer: &mut GzEncoder<Vec<u8>>) -> Result<bool, FileError> {
        if let Some(open) = self.open.take() {
            self.go_on(open, packer)
                .map_err(|error| FileError::io(Path::new("the archive"), error))?;
            return Ok(true);
        }
        match self.walk.next() {
            Some(Step::Entry(entry)) => self.add(&entry, packer)?,
            // Files that cannot be read are left out, as in `tar`.
            Some(Step::Trouble { .. } | Step::Left { .. }) => {}
            None => return Ok(false),
        }
        Ok(true)
    }

    fn add(&mut self, entry: &Entry, packer: &mut GzEncoder<Vec<u8>>) -> Result<(), FileError> {
        let found = &entry.found;
        let packed = |result: io::Result<()>| {
            result.map_err(|error| FileError::io(Path::new("the archive"), error))
        };
        match found.kind() {
            Kind::Directory => packed(write_header(packer, entry, EntryType::Directory, 0, None)),
            Kind::Symlink => {
                let target = found.link().unwrap_or_default();
                packed(write_header(
                    packer,
                    entry,
                    EntryType::Symlink,
                    0,
                    Some(target.as_os_str()),
                ))
            }
            Kind::Regular if found.is_open() => {
                let Ok(mut file) = found.read() else {
                    return Ok(());
                };
                if found.is_made_up() {
                    // Some generated files cannot be read at all, or only now and then.
                    let Ok(content) = read_made_up(&mut file) else {
                        return Ok(());
                    };
                    let size = content.len() as u64;
                    return packed(
                        write_header(packer, entry, EntryType::Regular, size, None)
                            .and_then(|()| packer.write_all(&content))
                            .and_then(|()| pad(packer, size)),
                    );
                }
                let size = size_of(found);
                packed(write_header(packer, entry, EntryType::Regular, size, None))?;
                self.open = Some(Open {
                    file,
                    left: size,
                    padding: padding_of(size),
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Packs one piece of a file. If the file has shrunk, zeros fill it up to the size in its header, which is packed already.
    fn go_on(&mut self, mut open: Open, packer: &mut GzEncoder<Vec<u8>>) -> io::Result<()> {
        if open.left == 0 {
            return packer.write_all(&[0; BLOCK as usize][..open.padding]);
        }
        self.piece.resize(PIECE, 0);
        let wanted = usize::try_from(open.left).unwrap_or(PIECE).min(PIECE);
        let read = match open.file.read(&mut self.piece[..wanted])? {
            0 => {
                self.piece[..wanted].fill(0);
                wanted
            }
            read => read,
        };
        packer.write_all(&self.piece[..read])?;
        open.left -= read as u64;
        self.open = Some(open);
        Ok(())
    }
}

impl Iterator for Archive {
    type Item = Result<Vec<u8>, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut packer = self.packer.take()?;
        loop {
            match self.advance(&mut packer) {
                Ok(true) if packer.get_ref().len() < PIECE / 2 => {}
                Ok(true) => {
                    let piece = std::mem::take(packer.get_mut());
                    self.packer = Some(packer);
                    return Some(Ok(piece));
                }
                Ok(false) => {
                    // Two empty blocks end an archive.
                    let end = packer
                        .write_all(&[0; 2 * BLOCK as usize])
                        .and_then(|()| packer.finish());
                    return Some(
                        end.map_err(|error| FileError::io(Path::new("the archive"), error)),
                    );
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn size_of(found: &Found) -> u64 {
    u64::try_from(found.stat().st_size).unwrap_or(0)
}

fn read_made_up(file: &mut File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(MADE_UP).read_to_end(&mut content)?;
    Ok(content)
}

fn padding_of(size: u64) -> usize {
    (size.next_multiple_of(BLOCK) - size) as usize
}

fn pad(packer: &mut impl io::Write, size: u64) -> io::Result<()> {
    packer.write_all(&[0; BLOCK as usize][..padding_of(size)])
}

fn write_header(
    packer: &mut impl io::Write,
    entry: &Entry,
    kind: EntryType,
    size: u64,
    target: Option<&OsStr>,
) -> io::Result<()> {
    let stat = entry.found.stat();
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    // A walk's root that is a single file has the relative path ".", so its own name is used.
    let name = match (kind, entry.relative == Path::new(".")) {
        (EntryType::Directory, true) => OsStr::new("."),
        (_, true) => entry.name.file_name().unwrap_or(OsStr::new("file")),
        _ => entry.relative.as_os_str(),
    };
    if header.set_path(name).is_err() {
        write_long(packer, EntryType::GNULongName, name)?;
        set_bytes(&mut header.as_old_mut().name, name);
    }
    if let Some(target) = target
        && header.set_link_name_literal(target.as_bytes()).is_err()
    {
        write_long(packer, EntryType::GNULongLink, target)?;
        set_bytes(&mut header.as_old_mut().linkname, target);
    }
    header.set_cksum();
    packer.write_all(header.as_bytes())
}

fn set_bytes(field: &mut [u8], name: &OsStr) {
    let bytes = name.as_bytes();
    let length = bytes.len().min(field.len());
    field.fill(0);
    field[..length].copy_from_slice(&bytes[..length]);
}

/// Writes the entry that precedes a file with a long name and holds that name (GNU tar manual, "Extensions").
fn write_long(packer: &mut impl io::Write, kind: EntryType, name: &OsStr) -> io::Result<()> {
    let mut header = Header::new_gnu();
    set_bytes(&mut header.as_old_mut().name, OsStr::from_bytes(LONG));
    header.set_entry_type(kind);
    let size = name.len() as u64 + 1;
    header.set_size(size);
    header.set_cksum();
    packer.write_all(header.as_bytes())?;
    packer.write_all(name.as_bytes())?;
    packer.write_all(&[0])?;
    pad(packer, size)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::files::{Depth, View};

    fn unpacked(root: &Path) -> tempfile::TempDir {
        let name = root.to_str().unwrap();
        let found = View::of_this_machine().find(name).unwrap();
        let archive = Archive::of(Walk::new(found, name, Depth::All));
        let packed: Vec<u8> = archive.flat_map(Result::unwrap).collect();
        let target = tempfile::tempdir().unwrap();
        tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()))
            .unpack(target.path())
            .unwrap();
        target
    }

    #[test]
    fn what_goes_in_comes_out() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let long = format!("{}/{}", "d".repeat(90), "f".repeat(120));
        std::fs::create_dir_all(at(&long).parent().unwrap()).unwrap();
        let big: Vec<u8> = (0..300_001_u32)
            .map(|number| (number * 7 / 3) as u8)
            .collect();
        std::fs::write(at(&long), "a long name").unwrap();
        std::fs::write(at("big"), &big).unwrap();
        std::fs::write(at("empty"), "").unwrap();
        std::os::unix::fs::symlink("x".repeat(150), at("link")).unwrap();
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();

        let out = unpacked(scratch.path());
        let out = |name: &str| out.path().join(name);
        assert_eq!(std::fs::read(out("big")).unwrap(), big);
        assert_eq!(std::fs::read_to_string(out(&long)).unwrap(), "a long name");
        assert_eq!(std::fs::read(out("empty")).unwrap(), b"");
        assert_eq!(
            std::fs::read_link(out("link")).unwrap(),
            Path::new(&"x".repeat(150))
        );
        assert!(!out("socket").exists());
    }

    #[test]
    fn one_file_has_its_name() {
        let out = unpacked(Path::new("/etc/os-release"));
        // /etc/os-release is a link to /usr/lib on most systems, and was followed.
        assert!(out.path().join("os-release").exists());
    }

    #[test]
    fn a_process_is_packed_without_its_secrets() {
        let out = unpacked(Path::new(&format!("/proc/{}/task", std::process::id())));
        let tasks: Vec<_> = std::fs::read_dir(out.path()).unwrap().flatten().collect();
        let task = tasks[0].path();
        assert!(!std::fs::read(task.join("stat")).unwrap().is_empty());
        assert!(!task.join("environ").exists() && !task.join("mem").exists());
        assert!(!task.join("fd").join("0").exists());
    }
}
