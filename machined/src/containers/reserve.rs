//! Room for what containers that live through an upgrade leave to the next machined, on a machine without a disk: there /var is in the same
//! memory, and a container may have filled it. A file takes the room until it is needed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// Size of the room, in bytes: the records of a dozen containers that are as talkative as usual. It is memory that nothing else can use.
const SIZE: u64 = 1 << 20;

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

    /// Takes the room, if it is not taken yet and there is so much left.
    pub(super) fn take(&self) {
        if self.path.exists() {
            return;
        }
        let taken = File::create(&self.path)
            .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, SIZE)?));
        if let Err(error) = taken {
            tracing::debug!("no room is kept for what containers leave: {error}");
            self.give_back();
        }
    }

    /// Gives the room back, to be used at once. Returns whether there was any.
    pub(super) fn give_back(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }

    /// Does this, and once more with the room of the reserve if there is no other.
    pub(super) fn or_with_its_room(&self, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && self.give_back() => write(),
            written => written,
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
    fn the_room_is_taken_until_a_record_needs_it() {
        let directory = tempfile::tempdir().unwrap();
        let reserve = Reserve::beside(&directory.path().join("containers"));
        reserve.take();
        reserve.take();
        let file = directory.path().join("reserve");
        assert!(fs::metadata(&file).unwrap().blocks() * 512 >= SIZE);
        let tries = Cell::new(0);
        let write = || {
            tries.set(tries.get() + 1);
            match file.exists() {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        };
        reserve.or_with_its_room(write).unwrap();
        assert_eq!(tries.get(), 2);
        // Another error, and a full memory without a reserve, are told.
        let full = || Err(io::ErrorKind::StorageFull.into());
        assert!(reserve.or_with_its_room(full).is_err());
        reserve.take();
        let other = || Err(io::ErrorKind::NotFound.into());
        assert!(reserve.or_with_its_room(other).is_err());
        assert!(file.exists());
    }
}
