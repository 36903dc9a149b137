//! The few kernel modules that init itself needs, from the initramfs.

use crate::console::complain;
use crate::failure::{Result, Step};
use rustix::io::Errno;
use rustix::system::finit_module;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// `MODULE_INIT_COMPRESSED_FILE` of linux/module.h.
const COMPRESSED: i32 = 4;

/// Loads all of /modules in name order and removes the files, which are RAM. One that does not load is complained
/// about and left: what needs it will say so, and a driver that is built in is not needed.
pub(crate) fn load(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        if let Err(failure) = load_one(&path) {
            complain!("{failure}");
        }
        let _ = fs::remove_file(path);
    }
}

fn load_one(path: &Path) -> Result<()> {
    let step = || format!("load the module {}", path.display());
    let file = File::open(path).step(step())?;
    let compressed = path.extension().is_none_or(|extension| extension != "ko");
    match finit_module(file, c"", if compressed { COMPRESSED } else { 0 }) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error).step(step()),
    }
}
