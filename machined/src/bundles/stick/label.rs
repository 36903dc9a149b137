//! The filesystem of a device and its label, read from its first bytes, and whether the label says that there is a bundle.
//!
//! A label of FAT has at most 11 bytes, so it is a shorter one there; the name of a GPT partition does as well, on any filesystem.

/// The labels that say that there is a bundle: of ext4 and of partitions, and of FAT.
pub const LABELS: [&str; 2] = ["INSTAR-BUNDLE", "INSTAR-BNDL"];

/// How FAT's names are read and written.
const FAT_NAMES: &str = "codepage=437,iocharset=ascii,shortname=mixed";

/// A filesystem that sticks may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileSystem {
    /// ext4, and its older forms.
    Ext4,
    /// FAT with long names.
    Vfat,
}

impl FileSystem {
    /// Its type for mount(2).
    pub fn kind(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Vfat => "vfat",
        }
    }

    /// Its options for a mount that only reads. A journal is not replayed.
    pub fn options(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "noload",
            FileSystem::Vfat => FAT_NAMES,
        }
    }

    /// Its options for a mount that writes.
    pub fn options_to_write(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "",
            FileSystem::Vfat => FAT_NAMES,
        }
    }
}

/// The filesystem of a device, and the label that says that there is a bundle, if it has one. `partition` is the name of its GPT partition.
pub(super) fn of_stick(
    head: &[u8],
    partition: Option<&str>,
) -> Option<(FileSystem, Option<&'static str>)> {
    let (filesystem, label) = label(head)?;
    let mut known = LABELS.into_iter();
    let found = known.find(|known| label == *known || partition == Some(known));
    Some((filesystem, found))
}

/// The filesystem and its label.
fn label(head: &[u8]) -> Option<(FileSystem, String)> {
    let at = |at: usize, length: usize| head.get(at..at + length);
    // ext4(5): the superblock begins at 1024.
    if at(1024 + 0x38, 2)? == [0x53, 0xef] {
        return Some((FileSystem::Ext4, text(at(1024 + 0x78, 16)?)));
    }
    // FAT: the signature of the boot sector, and the type in its extended part.
    if at(510, 2)? != [0x55, 0xaa] {
        return None;
    }
    match (at(82, 5)?, at(54, 3)?) {
        (b"FAT32", _) => Some((FileSystem::Vfat, text(at(71, 11)?))),
        (_, b"FAT") => Some((FileSystem::Vfat, text(at(43, 11)?))),
        _ => None,
    }
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches(['\0', ' ']).to_owned()
}

#[cfg(test)]
pub(super) mod tests {
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

    #[test]
    fn the_label_of_each_filesystem_is_read() {
        let fat16 = fat("INSTAR-BNDL", 43, 54, "FAT16   ");
        for (head, partition, expected) in [
            (ext4("INSTAR-BUNDLE"), None, Some(FileSystem::Ext4)),
            (fat32("INSTAR-BNDL"), None, Some(FileSystem::Vfat)),
            (fat16, None, Some(FileSystem::Vfat)),
            (
                fat32("HOLIDAY"),
                Some("INSTAR-BUNDLE"),
                Some(FileSystem::Vfat),
            ),
            (ext4(""), Some("other"), None),
            (fat32("HOLIDAY"), None, None),
            (ext4("INSTAR-BUNDLES"), None, None),
            (vec![0; 4096], Some("INSTAR-BUNDLE"), None),
            (vec![0xff; 4096], None, None),
            (Vec::new(), None, None),
            (ext4("INSTAR-BUNDLE")[..1100].to_vec(), None, None),
        ] {
            let found = of_stick(&head, partition)
                .and_then(|(filesystem, label)| label.map(|_| filesystem));
            assert_eq!(found, expected, "{partition:?}");
        }
    }
}
