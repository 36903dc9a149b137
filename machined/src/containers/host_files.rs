//! The machine's files that containers see: resolvers and hosts. They lie where workloads live, outlast a generation with them, and are
//! written in place, as a container that has one mounted would go on seeing a file that was replaced.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

pub use crate::mounts::workload_domain::{DOMAIN, has_domain};

const FILES: [&str; 2] = ["resolv.conf", "hosts"];

/// Where containers' copies are, and where each is seen: those that exist.
pub(super) fn seen() -> Vec<(PathBuf, PathBuf)> {
    let folder = match has_domain() {
        true => Path::new(DOMAIN).join("etc"),
        false => PathBuf::from("/run/etc"),
    };
    let pairs = FILES.map(|name| (folder.join(name), Path::new("/etc").join(name)));
    pairs
        .into_iter()
        .filter(|(from, _)| from.exists())
        .collect()
}

/// Writes a file of the machine's /etc to where containers see it, if it is one of those.
///
/// # Errors
/// It cannot be written.
pub fn show(name: &str, text: &str) -> io::Result<()> {
    if !has_domain() || !FILES.contains(&name) {
        return Ok(());
    }
    let folder = Path::new(DOMAIN).join("etc");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&folder)?;
    let path = folder.join(name);
    if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    fs::write(path, text)
}

/// Removes what an earlier generation left in the domain, when nothing of it lives on.
///
/// # Errors
/// Something of it stays.
pub fn clear_domain() -> io::Result<()> {
    if !has_domain() {
        return Ok(());
    }
    for entry in fs::read_dir(DOMAIN)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}
