//! A read-only disk for libraries that could write to it.

use std::io::{self, Read, Seek, SeekFrom, Write};

/// A disk that refuses writes.
#[derive(Debug)]
pub(crate) struct ReadOnly<Disk>(pub(crate) Disk);

/// Returns the error of a write.
pub(crate) fn read_only<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl<Disk: Read> Read for ReadOnly<Disk> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl<Disk: Seek> Seek for ReadOnly<Disk> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl<Disk> Write for ReadOnly<Disk> {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        read_only()
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
