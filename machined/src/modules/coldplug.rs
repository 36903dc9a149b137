//! The modaliases of the devices that are present.

use std::{collections::BTreeSet, fs, path::Path};

/// Depth limit of the walk. Real buses are not that deep; the limit only ends a walk of a directory that is not sysfs.
const DEEPEST: usize = 32;

/// Returns the distinct contents of all `modalias` files below `sysfs/devices`, sorted.
///
/// Symbolic links are not followed: every device is a real directory there exactly once. A device that vanishes during the walk is left
/// out.
pub fn modaliases(sysfs: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(&sysfs.join("devices"), DEEPEST, &mut found);
    found
}

fn collect(directory: &Path, depth: usize, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && depth > 0 {
            collect(&entry.path(), depth - 1, found);
        } else if kind.is_file()
            && entry.file_name() == "modalias"
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            let alias = text.trim_end();
            if !alias.is_empty() {
                found.insert(alias.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_device_is_asked_once() {
        let sys = tempfile::tempdir().unwrap();
        for (device, alias) in [
            ("pci0000:00/0000:00:02.0", "pci:v00001AF4d00001000"),
            (
                "pci0000:00/0000:00:02.0/virtio0",
                "virtio:d00000001v00001AF4",
            ),
            (
                "pci0000:00/0000:00:03.0/virtio1",
                "virtio:d00000001v00001AF4",
            ),
            ("platform/empty", ""),
        ] {
            let directory = sys.path().join("devices").join(device);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("modalias"), format!("{alias}\n")).unwrap();
        }
        let loop_back = sys.path().join("devices/pci0000:00/0000:00:02.0/subsystem");
        std::os::unix::fs::symlink("..", loop_back).unwrap();
        let found: Vec<_> = modaliases(sys.path()).into_iter().collect();
        assert_eq!(
            found,
            ["pci:v00001AF4d00001000", "virtio:d00000001v00001AF4"]
        );
    }

    #[test]
    fn no_sysfs_is_no_devices() {
        assert!(modaliases(Path::new("/nonexistent")).is_empty());
    }
}
