//! Sticks and disks that may have a bundle, and the kernel's word that devices came or went.

mod bytes;
mod label;
mod ntfs;
mod root_directory;
mod uevents;

pub use label::{FileSystem, LABELS};
pub use uevents::{Uevents, Word};

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use crate::disk::Label;

/// Devices that are made of memory or of other devices.
const NOT_A_STICK: [&str; 6] = ["loop", "ram", "zram", "dm-", "md", "fd"];

/// A block device whose filesystem may have a bundle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stick {
    /// The kernel's name, as in `sda1`.
    pub name: String,
    /// Its filesystem.
    pub filesystem: FileSystem,
    /// The label that says that it has one. Without it, a directory of its own may say so.
    pub label: Option<&'static str>,
    /// The number of the disk, which a disk that is plugged in later has not (`diskseq`); the name may come back.
    pub sequence: u64,
}

impl Stick {
    /// The device's node.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

/// Lists the sticks and disks that are plugged in and may have a bundle, by name. A device that cannot be read is none, and neither are the
/// machine's own partitions.
///
/// # Errors
/// The devices cannot be listed.
pub fn plugged_in(sysfs: &Path, devices: &Path) -> io::Result<BTreeMap<String, Stick>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(sysfs.join("class/block"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if NOT_A_STICK.iter().any(|other| name.starts_with(other)) {
            continue;
        }
        let about = fs::read_to_string(sysfs.join("class/block").join(&name).join("uevent"));
        let about = about.unwrap_or_default();
        let field = |field: &str| {
            let mut lines = about.lines();
            lines.find_map(|line| line.strip_prefix(field)?.strip_prefix('='))
        };
        let partition = field("PARTNAME");
        if partition.is_some_and(is_own) {
            continue;
        }
        let Ok(device) = File::open(devices.join(&name)) else {
            continue;
        };
        let bytes = |at, length| read_at(&device, at, length).ok();
        let Some((filesystem, label)) = label::of_stick(&bytes, partition) else {
            continue;
        };
        let sequence = field("DISKSEQ").and_then(|text| text.parse().ok());
        let stick = Stick {
            name: name.clone(),
            filesystem,
            label,
            sequence: sequence.unwrap_or(0),
        };
        found.insert(name, stick);
    }
    Ok(found)
}

/// Whether a partition of this name is one of the machine's own, or a user volume of its config.
fn is_own(partition: &str) -> bool {
    partition.parse::<Label>().is_ok() || partition.starts_with("u-")
}

/// Reads bytes of a device; fewer, if it ends before.
fn read_at(mut device: &File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    device.seek(SeekFrom::Start(at))?;
    device.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn devices_with_the_label_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let (sysfs, devices) = (directory.path().join("sys"), directory.path().join("dev"));
        fs::create_dir_all(&devices).unwrap();
        let plug = |name: &str, uevent: &str, head: &[u8]| {
            let about = sysfs.join("class/block").join(name);
            fs::create_dir_all(&about).unwrap();
            fs::write(about.join("uevent"), uevent).unwrap();
            fs::write(devices.join(name), head).unwrap();
        };
        let ext4 = label::tests::ext4("INSTAR-BUNDLE");
        plug("sda", "MAJOR=8\nDISKSEQ=7\n", &[0; 4096]);
        plug("sda1", "MAJOR=8\nDISKSEQ=7\nPARTN=1\n", &ext4);
        plug(
            "sdb1",
            "DISKSEQ=8\nPARTNAME=INSTAR-BUNDLE\n",
            &label::tests::fat32("HOLIDAY"),
        );
        plug("sdc1", "DISKSEQ=9\n", &label::tests::fat32("HOLIDAY"));
        let windows = label::tests::fat32_of_windows("INSTAR-BNDL");
        plug("sdd1", "DISKSEQ=10\n", &windows);
        plug("vda1", "PARTNAME=EFI\n", &label::tests::fat32("EFI"));
        plug("vda3", "PARTNAME=EPHEMERAL\n", &ext4);
        plug("vdb1", "PARTNAME=u-data\n", &ext4);
        plug("loop0", "DISKSEQ=9\n", &ext4);
        plug("sr0", "", b"");
        let found = plugged_in(&sysfs, &devices).unwrap();
        let found: Vec<_> = found.into_values().collect();
        let stick = |name: &str, filesystem, label, sequence| Stick {
            name: name.to_owned(),
            filesystem,
            label,
            sequence,
        };
        let label = Some("INSTAR-BUNDLE");
        let expected = [
            stick("sda1", FileSystem::Ext4, label, 7),
            stick("sdb1", FileSystem::Vfat, label, 8),
            stick("sdc1", FileSystem::Vfat, None, 9),
            stick("sdd1", FileSystem::Vfat, Some("INSTAR-BNDL"), 10),
        ];
        assert_eq!(found, expected);
    }
}
