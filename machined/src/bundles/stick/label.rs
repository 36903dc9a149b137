//! The filesystem of a device and its label, read from its bytes, and whether the label says that there is a bundle.
//!
//! A label of FAT has at most 11 bytes, so it is a shorter one there; the name of a GPT partition does as well, on any filesystem.

use super::bytes::{Bytes, field};

/// The labels that say that there is a bundle: of ext4 and of partitions, and of FAT.
pub const LABELS: [&str; 2] = ["INSTAR-BUNDLE", "INSTAR-BNDL"];

/// Bytes at the beginning of a device that show its filesystem.
const HEAD: usize = 4096;

/// How FAT's names are read and written.
const FAT_NAMES: &str = "codepage=437,iocharset=ascii,shortname=mixed";

/// A filesystem that sticks may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileSystem {
    /// ext4, and its older forms.
    Ext4,
    /// FAT with long names.
    Vfat,
    /// exFAT, which is not read here.
    Exfat,
    /// NTFS, which is not read here.
    Ntfs,
}

impl FileSystem {
    /// Its type for mount(2).
    pub fn kind(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Vfat => "vfat",
            FileSystem::Exfat => "exfat",
            FileSystem::Ntfs => "ntfs",
        }
    }

    /// Whether bundles on it can be read.
    pub fn is_readable(self) -> bool {
        match self {
            FileSystem::Ext4 | FileSystem::Vfat => true,
            FileSystem::Exfat | FileSystem::Ntfs => false,
        }
    }

    /// Its options for a mount that only reads. A journal is not replayed.
    pub fn options(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "noload",
            FileSystem::Vfat => FAT_NAMES,
            FileSystem::Exfat | FileSystem::Ntfs => "",
        }
    }

    /// Its options for a mount that writes.
    pub fn options_to_write(self) -> &'static str {
        match self {
            FileSystem::Vfat => FAT_NAMES,
            FileSystem::Ext4 | FileSystem::Exfat | FileSystem::Ntfs => "",
        }
    }
}

/// The filesystem of a device, and the label that says that there is a bundle, if it has one. `partition` is the name of its GPT partition,
/// `bytes` reads the device. A filesystem that cannot be read is only of interest with the label.
pub(super) fn of_stick(
    bytes: &Bytes<'_>,
    partition: Option<&str>,
) -> Option<(FileSystem, Option<&'static str>)> {
    let (filesystem, labels) = labels(bytes)?;
    let mut known = LABELS.into_iter();
    let found = known.find(|known| labels.iter().any(|it| it == known) || partition == Some(known));
    (filesystem.is_readable() || found.is_some()).then_some((filesystem, found))
}

/// The filesystem and its labels: of FAT there may be two.
fn labels(bytes: &Bytes<'_>) -> Option<(FileSystem, Vec<String>)> {
    let head = bytes(0, HEAD)?;
    // ext4(5): the superblock begins at 1024.
    if *field::<2>(&head, 1024 + 0x38)? == [0x53, 0xef] {
        let label = head.get(1024 + 0x78..)?.get(..16)?;
        return Some((FileSystem::Ext4, vec![text(label)]));
    }
    // The signature of a boot sector, and the type in it: of FAT in its extended part.
    if *field::<2>(&head, 510)? != [0x55, 0xaa] {
        return None;
    }
    match (
        field::<8>(&head, 3)?,
        field::<5>(&head, 82)?,
        field::<3>(&head, 54)?,
    ) {
        (b"EXFAT   ", _, _) => {
            let label = super::root_directory::label_of_exfat(bytes, &head);
            Some((FileSystem::Exfat, label.into_iter().collect()))
        }
        (b"NTFS    ", _, _) => {
            let label = super::ntfs::label_of_ntfs(bytes, &head);
            Some((FileSystem::Ntfs, label.into_iter().collect()))
        }
        (_, b"FAT32", _) => Some((FileSystem::Vfat, of_fat(bytes, &head, 71))),
        (_, _, b"FAT") => Some((FileSystem::Vfat, of_fat(bytes, &head, 43))),
        _ => None,
    }
}

/// The labels of FAT: the one in the boot sector, at this place, and the one in the root directory, where Windows writes it.
fn of_fat(bytes: &Bytes<'_>, head: &[u8], place: usize) -> Vec<String> {
    let in_boot_sector = field::<11>(head, place).map(|label| text(label));
    let in_root = super::root_directory::label_of_fat(bytes, head);
    in_boot_sector.into_iter().chain(in_root).collect()
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches(['\0', ' ']).to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::ntfs::tests::ntfs;
    use super::*;

    pub(in crate::bundles::stick) fn ext4(label: &str) -> Vec<u8> {
        let mut head = vec![0; 4096];
        head[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xef]);
        head[1024 + 0x78..][..label.len()].copy_from_slice(label.as_bytes());
        head
    }

    fn fat(label: &str, place: usize, kind: usize, name: &str) -> Vec<u8> {
        let mut head = vec![0; 4096];
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        head[kind..][..name.len()].copy_from_slice(name.as_bytes());
        head[place..][..11].copy_from_slice(format!("{label:<11}").as_bytes());
        head
    }

    pub(in crate::bundles::stick) fn fat32(label: &str) -> Vec<u8> {
        fat(label, 71, 82, "FAT32   ")
    }

    /// A directory entry of FAT with this name of 11 bytes, and these attributes.
    fn entry(name: &str, attributes: u8) -> Vec<u8> {
        let mut entry = vec![0; 32];
        entry[..11].copy_from_slice(format!("{name:<11}").as_bytes());
        entry[11] = attributes;
        entry
    }

    /// A device with the label among the entries of its root directory, after an older one and half of a long name.
    fn with_entries(mut device: Vec<u8>, root: usize, label: &str) -> Vec<u8> {
        let mut deleted = entry("INSTAR-BNDL", 0x08);
        deleted[0] = 0xe5;
        let entries = [
            deleted,
            entry("LONGNAME", 0x0f),
            entry("SYSTEM~1", 0x16),
            entry(label, 0x08),
        ];
        device.resize(root + 4096, 0);
        device[root..][..128].copy_from_slice(&entries.concat());
        device
    }

    /// FAT32 as Windows makes it: sectors of 512 bytes, clusters of 8, and the root directory in cluster 5.
    pub(in crate::bundles::stick) fn fat32_of_windows(label: &str) -> Vec<u8> {
        let mut device = fat32("NO NAME");
        device[11..14].copy_from_slice(&[0, 2, 8]);
        device[14..17].copy_from_slice(&[32, 0, 2]);
        device[36..40].copy_from_slice(&100_u32.to_le_bytes());
        device[44..48].copy_from_slice(&5_u32.to_le_bytes());
        with_entries(device, (32 + 2 * 100 + 3 * 8) * 512, label)
    }

    /// FAT16: the root directory of 512 entries follows the tables.
    fn fat16_of_windows(label: &str) -> Vec<u8> {
        let mut device = fat("NO NAME", 43, 54, "FAT16   ");
        device[11..14].copy_from_slice(&[0, 2, 8]);
        device[14..19].copy_from_slice(&[1, 0, 2, 0, 2]);
        device[22..24].copy_from_slice(&50_u16.to_le_bytes());
        with_entries(device, (1 + 2 * 50) * 512, label)
    }

    fn boot_sector(kind: &str) -> Vec<u8> {
        let mut device = vec![0; 4096];
        device[510..512].copy_from_slice(&[0x55, 0xaa]);
        device[3..11].copy_from_slice(kind.as_bytes());
        device
    }

    /// exFAT with sectors of 512 bytes and clusters of 8; the clusters begin at sector 200, and the root directory is cluster 4.
    fn exfat(label: &str) -> Vec<u8> {
        let mut device = boot_sector("EXFAT   ");
        device[88..92].copy_from_slice(&200_u32.to_le_bytes());
        device[96..100].copy_from_slice(&4_u32.to_le_bytes());
        device[108..110].copy_from_slice(&[9, 3]);
        let root = (200 + 2 * 8) * 512;
        device.resize(root + 4096, 0);
        let mut entry = vec![0x83, u8::try_from(label.len()).unwrap()];
        entry.extend(label.encode_utf16().flat_map(u16::to_le_bytes));
        device[root] = 0x81;
        device[root + 32..][..entry.len()].copy_from_slice(&entry);
        device
    }

    fn of(device: &[u8], partition: Option<&str>) -> Option<(FileSystem, Option<&'static str>)> {
        let bytes = |at: u64, length: usize| {
            let rest = device.get(usize::try_from(at).ok()?..)?;
            Some(rest.get(..length).unwrap_or(rest).to_vec())
        };
        of_stick(&bytes, partition)
    }

    #[test]
    fn the_label_of_each_filesystem_is_read() {
        let fat16 = fat("INSTAR-BNDL", 43, 54, "FAT16   ");
        for (head, partition, expected) in [
            (ext4("INSTAR-BUNDLE"), None, Some(FileSystem::Ext4)),
            (fat32("INSTAR-BNDL"), None, Some(FileSystem::Vfat)),
            (fat16, None, Some(FileSystem::Vfat)),
            (
                fat32_of_windows("INSTAR-BNDL"),
                None,
                Some(FileSystem::Vfat),
            ),
            (
                fat16_of_windows("INSTAR-BNDL"),
                None,
                Some(FileSystem::Vfat),
            ),
            (
                fat32("HOLIDAY"),
                Some("INSTAR-BUNDLE"),
                Some(FileSystem::Vfat),
            ),
            (ext4(""), Some("other"), None),
            (fat32("HOLIDAY"), None, None),
            (fat32_of_windows("HOLIDAY"), None, None),
            (fat16_of_windows("HOLIDAY"), None, None),
            (ext4("INSTAR-BUNDLES"), None, None),
            (vec![0; 4096], Some("INSTAR-BUNDLE"), None),
            (vec![0xff; 4096], None, None),
            (Vec::new(), None, None),
            (ext4("INSTAR-BUNDLE")[..1100].to_vec(), None, None),
        ] {
            let found =
                of(&head, partition).and_then(|(filesystem, label)| label.map(|_| filesystem));
            assert_eq!(found, expected, "{partition:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_only_with_the_label() {
        let (label, named) = (Some("INSTAR-BNDL"), Some("INSTAR-BUNDLE"));
        let bundle = Some("INSTAR-BUNDLE");
        assert_eq!(
            of(&ntfs("INSTAR-BUNDLE"), None),
            Some((FileSystem::Ntfs, bundle))
        );
        assert_eq!(
            of(&exfat("INSTAR-BNDL"), None),
            Some((FileSystem::Exfat, label))
        );
        assert_eq!(
            of(&exfat("HOLIDAY"), named),
            Some((FileSystem::Exfat, named))
        );
        assert_eq!(of(&ntfs("HOLIDAY"), named), Some((FileSystem::Ntfs, named)));
        for other in [exfat("HOLIDAY"), ntfs("HOLIDAY"), boot_sector("NTFS    ")] {
            assert_eq!(of(&other, None), None);
        }
    }

    /// Places of a damaged boot sector lead nowhere, and nothing is computed beyond a number's end.
    #[test]
    fn a_damaged_filesystem_has_no_label() {
        for kind in [fat32("NO NAME"), boot_sector("EXFAT   ")] {
            for byte in [0, 1, 0xff] {
                let mut device = kind.clone();
                device[11..50].fill(byte);
                device[80..82].fill(byte);
                device[88..110].fill(byte);
                let label = of(&device, None).and_then(|(_, label)| label);
                assert_eq!(label, None, "{byte}");
            }
        }
    }
}
