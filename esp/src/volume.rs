//! The seam between plans and the partition: what a plan does to files. Paths are relative to the volume's root, with slashes.

use std::io::{self, Read};

/// Where things are.
pub mod paths {
    /// systemd-boot, where every firmware looks.
    pub const LOADER: &str = "EFI/BOOT/BOOTX64.EFI";
    /// The next one, until it takes the place.
    pub const NEW_LOADER: &str = "EFI/BOOT/BOOTX64.NEW";
    /// The folder of the loader.
    pub const BOOT: &str = "EFI/BOOT";
    /// The folder of the slots.
    pub const UKIS: &str = "EFI/instar";
    /// The folder of the entries.
    pub const ENTRIES: &str = "loader/entries";
    /// The loader's configuration.
    pub const LOADER_CONFIG: &str = "loader/loader.conf";
    /// Keys that systemd-boot enrols by itself on a machine in setup mode, where its configuration allows it.
    pub const KEYS: &str = "loader/keys/auto";
}

/// Files on a partition. One call is one kind of write, so that a test can lose each of them.
pub trait Volume {
    /// The names in a folder and the sizes of what are files; nothing when there is no such folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>>;

    /// A small file's content.
    ///
    /// # Errors
    /// The file is not there or cannot be read.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// A file's content as it is on the disk, not as it is in memory.
    ///
    /// # Errors
    /// The file is not there or cannot be read.
    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>>;

    /// How many bytes can still be written.
    ///
    /// # Errors
    /// The filesystem does not tell.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Makes a folder; one that is there is fine.
    ///
    /// # Errors
    /// The folder cannot be made.
    fn make_folder(&mut self, path: &str) -> io::Result<()>;

    /// Makes a file that is not there yet and writes its content.
    ///
    /// # Errors
    /// The file is there, there is no room, or the content cannot be read.
    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()>;

    /// Has what was written to a file put onto the disk.
    ///
    /// # Errors
    /// The disk failed.
    fn sync_file(&mut self, path: &str) -> io::Result<()>;

    /// Has what changed in a folder put onto the disk; the root is `""`.
    ///
    /// # Errors
    /// The disk failed.
    fn sync_folder(&mut self, path: &str) -> io::Result<()>;

    /// Removes a file; none there is fine.
    ///
    /// # Errors
    /// The file cannot be removed.
    fn remove(&mut self, path: &str) -> io::Result<()>;

    /// Gives a file the name of another one **that is there** and takes its place.
    ///
    /// # Errors
    /// Either is not there, or it cannot be done.
    fn replace(&mut self, from: &str, to: &str) -> io::Result<()>;
}
