//! The machine's files that containers see: resolvers and hosts. The copies lie in the workload domain, so they outlast a
//! generation as the workloads do. They are written in place: a container that has one mounted would keep seeing the old file if
//! it were replaced.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

pub use crate::mounts::workload_domain::{DOMAIN, has_domain};

const FILES: [&str; 2] = ["resolv.conf", "hosts"];
/// Says that the domain has been cleared in this generation, in whose memory it lies.
const CLEARED: &str = "/run/workloads-cleared";

/// Lists the copies that exist, each with its path in a container.
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

/// Copies a file of the machine's /etc for containers, if they see it.
///
/// # Errors
/// The copy cannot be written.
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
    write_in_place(&path, text.as_bytes())
}

/// Writes over a file, and keeps the old text if there is no room for a longer one.
fn write_in_place(path: &Path, text: &[u8]) -> io::Result<()> {
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let (old, new) = (file.metadata()?.len(), text.len() as u64);
    // The room first: half of a new text would be worse than the old one.
    if new > old {
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, old, new - old)?;
    }
    file.write_all_at(text, 0)?;
    file.set_len(new)
}

/// Empties the domain of an earlier generation's files, once in a generation: a machined that was ended halfway leaves the rest to the next one.
/// What is half removed may look whole: an image whose record is still there would be run. Call it only in a generation that no workload has
/// lived into.
///
/// # Errors
/// A file cannot be removed.
pub fn clear_domain() -> io::Result<()> {
    match has_domain() {
        true => clear_once(Path::new(DOMAIN), Path::new(CLEARED)),
        false => Ok(()),
    }
}

fn clear_once(domain: &Path, cleared: &Path) -> io::Result<()> {
    if cleared.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(domain)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::write(cleared, "")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_written_over_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        for text in [
            "nameserver 10.0.2.3\n",
            "nameserver fd00::3\n# longer\n",
            "#\n",
            "",
        ] {
            write_in_place(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_domain_that_was_half_cleared_is_cleared_by_the_next_machined_and_only_once() {
        let memory = tempfile::tempdir().unwrap();
        let (domain, cleared) = (memory.path().join("domain"), memory.path().join("cleared"));
        let image = domain.join("var/lib/instar/images/1");
        fs::create_dir_all(&image).unwrap();
        fs::write(image.join("image.json"), "{}").unwrap();
        fs::write(domain.join("reserve"), "").unwrap();
        let is_empty = || fs::read_dir(&domain).unwrap().next().is_none();
        clear_once(&domain, &cleared).unwrap();
        assert!(is_empty());

        // What this generation has started since stays over a restart of machined.
        fs::create_dir(domain.join("containers")).unwrap();
        clear_once(&domain, &cleared).unwrap();
        assert!(!is_empty());
        // One that was ended before it had removed all has not said so.
        fs::remove_file(&cleared).unwrap();
        clear_once(&domain, &cleared).unwrap();
        assert!(is_empty());
    }
}
