//! The seam between plans and the partition: the file operations of a plan. Paths are relative to the volume's root, with slashes.

use std::io::{self, Read};

/// Paths on the partition.
pub mod paths {
    /// systemd-boot, where every firmware looks.
    pub const LOADER: &str = "EFI/BOOT/BOOTX64.EFI";
    /// The new systemd-boot, until it replaces the present one.
    pub const NEW_LOADER: &str = "EFI/BOOT/BOOTX64.NEW";
    /// The loader's folder.
    pub const BOOT: &str = "EFI/BOOT";
    /// The folder of the slots.
    pub const UKIS: &str = "EFI/instar";
    /// What a version's installer image says of itself, on media and on what was installed from one.
    pub const DESCRIPTION: &str = "EFI/instar/image.json";
    /// The folder of the entries.
    pub const ENTRIES: &str = "loader/entries";
    /// The loader's configuration.
    pub const LOADER_CONFIG: &str = "loader/loader.conf";
    /// Keys that systemd-boot enrols by itself on a machine in setup mode, if its configuration allows it.
    pub const KEYS: &str = "loader/keys/auto";
}

/// Files on a partition. One call is one kind of write, so that a test can lose each of them.
pub trait Volume {
    /// The names in a folder with the sizes of files; empty if there is no such folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>>;

    /// A small file's content.
    ///
    /// # Errors
    /// The file is not there or cannot be read.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// A file's content as it is on the disk, not as it is cached in memory.
    ///
    /// # Errors
    /// The file is not there or cannot be read.
    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>>;

    /// Free space in bytes.
    ///
    /// # Errors
    /// The filesystem does not report it.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Makes a folder; an existing one is fine.
    ///
    /// # Errors
    /// The folder cannot be made.
    fn make_folder(&mut self, path: &str) -> io::Result<()>;

    /// Creates a new file and writes its content.
    ///
    /// # Errors
    /// The file exists, there is no room, or the content cannot be read.
    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()>;

    /// Flushes a file's content to the disk.
    ///
    /// # Errors
    /// The disk failed.
    fn sync_file(&mut self, path: &str) -> io::Result<()>;

    /// Flushes the changes in a folder to the disk; the root is `""`.
    ///
    /// # Errors
    /// The disk failed.
    fn sync_folder(&mut self, path: &str) -> io::Result<()>;

    /// Removes a file; a missing one is fine.
    ///
    /// # Errors
    /// The file cannot be removed.
    fn remove(&mut self, path: &str) -> io::Result<()>;

    /// Renames a file over another one **that exists**.
    ///
    /// # Errors
    /// Either does not exist, or the rename fails.
    fn replace(&mut self, from: &str, to: &str) -> io::Result<()>;
}
