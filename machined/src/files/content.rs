//! A file's content, piece by piece.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use super::view::{FileError, Found};

/// Bytes per piece.
const PIECE: usize = 32 * 1024;

/// An iterator over the pieces of a regular file, to its end. The size in stat(2) is ignored: files of /proc report 0.
#[derive(Debug)]
pub struct Content {
    path: PathBuf,
    file: Option<File>,
}

impl Content {
    /// Opens a file that was found.
    pub fn of(found: &Found) -> Result<Self, FileError> {
        Ok(Content {
            path: found.path().to_owned(),
            file: Some(found.read()?),
        })
    }
}

impl Iterator for Content {
    type Item = Result<Vec<u8>, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let file = self.file.as_mut()?;
        let mut piece = vec![0; PIECE];
        match file.read(&mut piece) {
            Ok(0) => {
                self.file = None;
                None
            }
            Ok(length) => {
                piece.truncate(length);
                Some(Ok(piece))
            }
            Err(source) => {
                self.file = None;
                Some(Err(FileError::io(&self.path, source)))
            }
        }
    }
}
