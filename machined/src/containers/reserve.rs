//! Room for what containers that live through an upgrade leave to the next machined, on a machine without a disk: there /var is in the same
//! memory, and a container may have filled it. A file takes the room until it is needed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// Size of the room, in bytes: the records of a dozen containers that are as talkative as usual. It is memory that nothing else can use.
const SIZE: u64 = 1 << 20;

/// Size of a block of memory, in bytes; where blocks are larger, a second piece is given back.
const BLOCK: u64 = 4 << 10;

/// The file.
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    /// Returns the reserve for the records in this directory.
    pub(super) fn beside(records: &Path) -> Self {
        Reserve {
            path: records.with_file_name("reserve"),
        }
    }

    /// Takes the room, or what is missing of it, if there is so much left.
    pub(super) fn take(&self) {
        if self.size() == SIZE {
            return;
        }
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.path);
        let taken = file.and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, SIZE)?));
        if let Err(error) = taken {
            tracing::debug!("no room is kept for what containers leave: {error}");
        }
    }

    fn size(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }

    /// Gives so much of the room back, in whole blocks. Returns whether there was any.
    fn give_back(&self, room: u64) -> bool {
        let size = self.size();
        let left = size.saturating_sub(room.max(1).next_multiple_of(BLOCK));
        let file = File::options().write(true).open(&self.path);
        size > 0 && file.and_then(|file| file.set_len(left)).is_ok()
    }

    /// Writes so many bytes; if there is no room for them, with the room of the reserve.
    ///
    /// The program that has filled the memory may still write, and take a piece that was given back before the bytes are there. Then the next
    /// piece follows, until the reserve is empty: a program that never rests can still take all of it.
    pub(super) fn or_with_its_room(
        &self,
        bytes: u64,
        write: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            match write() {
                Err(error)
                    if error.kind() == io::ErrorKind::StorageFull && self.give_back(bytes) => {}
                written => return written,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::cell::Cell;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_record_takes_as_much_as_it_needs_and_the_rest_stays() {
        let directory = tempfile::tempdir().unwrap();
        let reserve = Reserve::beside(&directory.path().join("containers"));
        reserve.take();
        reserve.take();
        let file = directory.path().join("reserve");
        assert!(fs::metadata(&file).unwrap().blocks() * 512 >= SIZE);
        let size = || fs::metadata(&file).unwrap().len();
        // A full memory: a write succeeds once this much was given back.
        let tries = Cell::new(0);
        let full_until = |size_then: u64| {
            let (tries, size) = (&tries, &size);
            move || {
                tries.set(tries.get() + 1);
                match size() > size_then {
                    true => Err(io::ErrorKind::StorageFull.into()),
                    false => Ok(()),
                }
            }
        };
        let needed = BLOCK + 1;
        let left = SIZE - 2 * BLOCK;
        reserve.or_with_its_room(needed, full_until(left)).unwrap();
        assert_eq!((tries.take(), size()), (2, left));
        // Another program has taken the first piece.
        let left = left - 4 * BLOCK;
        reserve.or_with_its_room(needed, full_until(left)).unwrap();
        assert_eq!((tries.take(), size()), (3, left));
        reserve.take();
        assert_eq!(size(), SIZE);
        // Another error is told, and a full memory when the reserve is empty.
        let other = || Err(io::ErrorKind::NotFound.into());
        assert!(reserve.or_with_its_room(needed, other).is_err());
        assert_eq!(size(), SIZE);
        let full = || Err(io::ErrorKind::StorageFull.into());
        assert!(reserve.or_with_its_room(SIZE / 2, full).is_err());
        assert_eq!(size(), 0);
        assert!(reserve.or_with_its_room(0, full).is_err());
    }
}
