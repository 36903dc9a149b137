//! A partition that the kernel has mounted.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise, statvfs};

use crate::volume::Volume;

/// A mounted EFI system partition.
#[derive(Clone, Debug)]
pub struct Mounted {
    root: PathBuf,
}

impl Mounted {
    /// The partition that is mounted at this folder.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

impl Volume for Mounted {
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>> {
        let entries = match fs::read_dir(self.path(folder)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            // A name that is not Unicode is not one of ours.
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                files.push((name, entry.metadata()?.len()));
            }
        }
        Ok(files)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(path))
    }

    /// Opens a file to be read from the disk: the kernel drops its cached pages, which it can as the file is synchronized.
    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        let file = File::open(self.path(path))?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        Ok(Box::new(file))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let figures = statvfs(&self.root)?;
        Ok(figures.f_bavail * figures.f_frsize)
    }

    fn make_folder(&mut self, path: &str) -> io::Result<()> {
        match fs::create_dir(self.path(path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.path(path))?;
        io::copy(content, &mut file).map(drop)
    }

    fn sync_file(&mut self, path: &str) -> io::Result<()> {
        sync(&self.path(path))
    }

    fn sync_folder(&mut self, path: &str) -> io::Result<()> {
        sync(&self.path(path))
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        match fs::remove_file(self.path(path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        // In a rename to a new name vfat may lose both files.
        fs::metadata(self.path(to))?;
        fs::rename(self.path(from), self.path(to))
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
