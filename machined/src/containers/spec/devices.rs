//! The machine's device nodes, for a container that gets all of them.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use serde_json::{Value, json};

/// Device nodes that every container has of its own, made by the runtime or mounted.
const ITS_OWN: [&str; 12] = [
    "console", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "tty", "urandom",
    "zero",
];

/// Lists the device nodes below a directory, as the runtime specification describes them. A node that disappears meanwhile is left out.
pub(super) fn below(directory: &Path) -> Vec<Value> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(directory).ok().and_then(Path::to_str);
            if name.is_none_or(|name| ITS_OWN.contains(&name)) {
                continue;
            }
            let Ok(facts) = fs::symlink_metadata(&path) else {
                continue;
            };
            let kind = facts.file_type();
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_char_device() || kind.is_block_device() {
                let number = facts.rdev();
                found.push(json!({
                    "type": if kind.is_block_device() { "b" } else { "c" },
                    "path": path,
                    "major": rustix::fs::major(number),
                    "minor": rustix::fs::minor(number),
                    "fileMode": facts.mode() & 0o777,
                    "uid": facts.uid(),
                    "gid": facts.gid(),
                }));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_container_has_itself_is_left_out() {
        let devices = below(Path::new("/dev"));
        let paths: Vec<&str> = devices
            .iter()
            .filter_map(|device| device["path"].as_str())
            .collect();
        assert!(
            !paths.contains(&"/dev/null") && !paths.iter().any(|path| path.starts_with("/dev/pts"))
        );
        for device in &devices {
            assert!(
                device["major"].is_u64() && device["minor"].is_u64(),
                "{device}"
            );
        }
    }
}
