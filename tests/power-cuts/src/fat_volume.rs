//! The EFI system partition's files.

use std::io::{self, Read, Seek};

use blake3::Hash;
use instar_esp::Volume;

use crate::read_only::{ReadOnly, read_only};

/// Files on a read-only FAT, read as a loader reads them: the FAT's entries for the clusters after a file's end, or for
/// its only cluster, do not matter.
pub struct FatVolume<Disk: Read + Seek>(fatfs::FileSystem<ReadOnly<Disk>>);

impl<Disk: Read + Seek> FatVolume<Disk> {
    /// Reads the places of all files.
    ///
    /// # Errors
    /// It is no FAT, or the disk fails.
    pub fn open(disk: Disk) -> io::Result<Self> {
        let options = fatfs::FsOptions::new().update_accessed_date(false);
        fatfs::FileSystem::new(ReadOnly(disk), options).map(Self)
    }

    pub(crate) fn digest(&self, path: &str) -> io::Result<Hash> {
        let mut file = self.0.root_dir().open_file(path)?;
        let mut hasher = blake3::Hasher::new();
        let mut piece = vec![0; 64 << 10];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hasher.finalize()),
                count => hasher.update(&piece[..count]),
            };
        }
    }
}

impl<Disk: Read + Seek> Volume for FatVolume<Disk> {
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>> {
        let folder = match self.0.root_dir().open_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folder => folder?,
        };
        let mut files = Vec::new();
        for entry in folder.iter() {
            let entry = entry?;
            if entry.is_file() {
                files.push((entry.file_name(), entry.len()));
            }
        }
        Ok(files)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.0
            .root_dir()
            .open_file(path)?
            .read_to_end(&mut content)?;
        Ok(content)
    }

    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(self.0.root_dir().open_file(path)?))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn make_folder(&mut self, _path: &str) -> io::Result<()> {
        read_only()
    }

    fn create(&mut self, _path: &str, _content: &mut dyn Read) -> io::Result<()> {
        read_only()
    }

    fn sync_file(&mut self, _path: &str) -> io::Result<()> {
        read_only()
    }

    fn sync_folder(&mut self, _path: &str) -> io::Result<()> {
        read_only()
    }

    fn remove(&mut self, _path: &str) -> io::Result<()> {
        read_only()
    }

    fn replace(&mut self, _from: &str, _to: &str) -> io::Result<()> {
        read_only()
    }
}
