//! The few kernel modules that init itself needs, from the initramfs.

use crate::console::complain;
use rustix::system::finit_module;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;

/// `MODULE_INIT_COMPRESSED_FILE` of linux/module.h.
const COMPRESSED: i32 = 4;

/// Loads all modules of /modules in name order and removes the files, which are RAM. An error is logged only: the user of a missing module
/// will report it, and a driver that is built in is not needed.
pub(crate) fn load() {
    let entries = fs::read_dir("/modules").into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        // Debian's loop module makes eight devices in advance by default, 100 KiB of RAM each.
        let is_loop = path.ends_with("10-loop.ko.xz");
        let parameters = if is_loop { c"max_loop=0" } else { c"" };
        let loaded =
            File::open(&path).and_then(|file| Ok(finit_module(file, parameters, COMPRESSED)?));
        if let Err(error) = loaded
            && error.kind() != ErrorKind::AlreadyExists
        {
            complain!("cannot load the module {}: {error}", path.display());
        }
        // A file that stays only takes memory: it is not loaded again.
        let _ = fs::remove_file(path);
    }
}
