//! The form as a file: a tar archive whose every byte outside of the members' content follows from their names and sizes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use tar::{EntryType, Header};

use crate::fault::{Fault, Place, Refused};
use crate::limits::quote;
use crate::member::{Member, Name};
use crate::pace::Pace;

const BLOCK: usize = 512;
/// Bytes of zeros at the end.
pub(crate) const END: usize = 2 * BLOCK;
/// Size of the pieces in which content is read.
const PIECE: usize = 64 << 10;

/// The header of a member.
pub(crate) fn header(member: Member) -> [u8; BLOCK] {
    let mut header = Header::new_ustar();
    // The longest name has 77 bytes, of 100.
    let _ = header.set_path(member.name.to_string());
    header.set_size(member.size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    *header.as_bytes()
}

/// Bytes of zeros after content of this size.
pub(crate) fn padding(size: u64) -> usize {
    let rest = (size % BLOCK as u64) as usize;
    (BLOCK - rest) % BLOCK
}

/// An archive that is read from its beginning to its end.
#[derive(Debug, Clone)]
pub struct Archive {
    file: Arc<File>,
    at: u64,
    pace: Pace,
}

impl Archive {
    pub(crate) fn new(file: File) -> Self {
        Archive {
            file: Arc::new(file),
            at: 0,
            pace: Pace::default(),
        }
    }

    /// The offset of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    fn place(&self, at: u64, what: impl ToString) -> Place {
        Place {
            what: what.to_string(),
            at: Some(at),
        }
    }

    /// Fills the buffer from the next byte on.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), Fault> {
        let read = || {
            let read = self.file.read_exact_at(buffer, self.at);
            read.map(|()| buffer.len())
        };
        self.pace.of(read).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Incomplete,
            _ => Fault::Io(error),
        })?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    /// The size in the next header, which nothing else tells.
    pub(crate) fn announced(&mut self, name: Name) -> Result<u64, Refused> {
        let begin = self.at;
        let mut block = [0; BLOCK];
        let read = self.fill(&mut block);
        self.at = begin;
        let what = format!("the header of {name}");
        read.map_err(|fault| fault.at(self.place(begin, &what)))?;
        let header = Header::from_byte_slice(&block);
        let size = header.entry_size();
        size.map_err(|_| unexpected(&block, name).at(self.place(begin, what)))
    }

    /// Reads the next member, which has to be this one, piece by piece.
    pub(crate) fn read(
        &mut self,
        member: Member,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Refused> {
        let Member { name, size } = member;
        let begin = self.at;
        let mut block = [0; BLOCK];
        let place = self.place(begin, format!("the header of {name}"));
        self.fill(&mut block).map_err(|it| it.at(place.clone()))?;
        if block != header(member) {
            let fault = match name {
                Name::Layout => Fault::NotABundle,
                _ => unexpected(&block, name),
            };
            return Err(fault.at(place));
        }
        let mut piece = vec![0; size.min(PIECE as u64) as usize];
        let mut left = size;
        while left > 0 {
            let length = left.min(PIECE as u64) as usize;
            let at = self.at;
            self.fill(&mut piece[..length])
                .map_err(|it| it.at(self.place(at, name)))?;
            sink(&piece[..length]);
            left -= length as u64;
        }
        self.zeros(padding(size), &format!("the padding after {name}"))
    }

    fn zeros(&mut self, count: usize, what: &str) -> Result<(), Refused> {
        let at = self.at;
        let mut bytes = [0; END];
        let bytes = &mut bytes[..count];
        self.fill(bytes).map_err(|it| it.at(self.place(at, what)))?;
        match bytes.iter().position(|&byte| byte != 0) {
            Some(place) => Err(Fault::NotZero.at(self.place(at + place as u64, what))),
            None => Ok(()),
        }
    }

    /// Reads the end, after which nothing may be.
    pub(crate) fn finish(&mut self) -> Result<(), Refused> {
        self.zeros(END, "the end of the archive")?;
        let place = self.place(self.at, "after the end of the archive");
        match self.file.read_at(&mut [0], self.at) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Fault::Surplus.at(place)),
            Err(error) => Err(Fault::Io(error).at(place)),
        }
    }

    /// Reads content that was found before, from an offset on.
    pub(crate) fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.pace.of(|| self.file.read_at(buffer, at))
    }

    /// The offset of the content of a member of this size that was read last.
    pub(crate) fn content_of_last(&self, size: u64) -> u64 {
        self.at - size - padding(size) as u64
    }
}

fn unexpected(block: &[u8; BLOCK], name: Name) -> Fault {
    let expected = name.to_string();
    if block.iter().all(|&byte| byte == 0) {
        return Fault::Lacks(expected);
    }
    let found = block[..100].split(|&byte| byte == 0).next();
    Fault::Header {
        expected,
        found: quote(found.unwrap_or_default()),
    }
}
