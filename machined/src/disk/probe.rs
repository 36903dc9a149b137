//! What is on a disk, found out by reading only.

use std::{
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use gpt::{GptConfig, disk::LogicalBlockSize};
use serde::Serialize;

use super::{discover::Disk, layout};

/// Both ends of a disk that are looked at; every signature below lies in them, and so do both GPTs.
const END: u64 = 1024 * 1024;

/// What a disk holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Both ends are zero, or hold nothing but the beginnings of our own partition table (a cut while it was made).
    Blank,
    /// A GPT with Instar's partitions and no others.
    Ours(Table),
    /// A GPT with other partitions, or none.
    ForeignGpt(Table),
    /// A GPT of which neither copy is whole.
    BrokenGpt,
    /// An MBR partition table.
    Mbr,
    /// A filesystem or a volume right on the disk.
    Signature(Signature),
    /// Something else.
    Unknown,
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its partitions by number.
    pub partitions: Vec<Partition>,
    /// Only one of its two copies is whole, or the backup is not at the end of the disk.
    pub needs_repair: bool,
}

/// An entry of a partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1.
    pub number: u32,
    /// Its name.
    pub label: String,
    /// Its type.
    pub kind: uuid::Uuid,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// What is recognized without a partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub enum Signature {
    Ext,
    Xfs,
    Btrfs,
    Luks,
    Lvm,
    Squashfs,
    Iso9660,
    Vfat,
    Ntfs,
    Exfat,
    Swap,
    MdRaid,
}

/// Why a disk could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}; see the kernel log for I/O errors")]
pub struct ProbeError {
    path: PathBuf,
    source: io::Error,
}

impl Content {
    /// Whether a partition table or filesystem may be made without asking.
    pub fn is_blank(&self) -> bool {
        matches!(self, Self::Blank)
    }
}

/// Reads both ends of a disk and says what is on it. Opens it for reading only.
pub fn probe(disk: &Disk) -> Result<Content, ProbeError> {
    probe_file(disk.dev_path.as_path(), disk.size, disk.sector_size)
}

/// The same for a file or device of `size` bytes.
pub fn probe_file(path: &Path, size: u64, sector_size: u64) -> Result<Content, ProbeError> {
    let failed = |source| ProbeError {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    let head = read_at(&mut file, 0, END.min(size)).map_err(failed)?;
    let tail = read_at(&mut file, size.saturating_sub(END), END.min(size)).map_err(failed)?;
    let sector = usize::try_from(sector_size).unwrap_or(512).max(512);
    if is_zero(&head) && is_zero(&tail) {
        return Ok(Content::Blank);
    }
    let has_gpt = head
        .get(sector..)
        .is_some_and(|rest| rest.starts_with(GPT_MAGIC))
        || tail
            .len()
            .checked_sub(sector)
            .is_some_and(|at| tail[at..].starts_with(GPT_MAGIC));
    if has_gpt && let Some(table) = read_gpt(file, sector_size) {
        let ours = !table.partitions.is_empty()
            && table
                .partitions
                .iter()
                .all(|partition| layout::is_ours(&partition.label, &partition.kind));
        return Ok(if ours {
            Content::Ours(table)
        } else {
            Content::ForeignGpt(table)
        });
    }
    if is_interrupted_table(&head) && is_interrupted_table(&tail) {
        return Ok(Content::Blank);
    }
    if has_gpt {
        return Ok(Content::BrokenGpt);
    }
    if let Some(signature) = signature(&head, &tail) {
        return Ok(Content::Signature(signature));
    }
    Ok(if has_mbr(&head) {
        Content::Mbr
    } else {
        Content::Unknown
    })
}

/// The signature at the start of a partition, if it holds something known.
pub fn probe_partition(path: &Path) -> Result<Option<Signature>, ProbeError> {
    let failed = |source| ProbeError {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    let head = read_at(&mut file, 0, END).map_err(failed)?;
    Ok(signature(&head, &[]))
}

/// At most `length` bytes from `offset`; less at the end of the device.
fn read_at(file: &mut File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

const GPT_MAGIC: &[u8] = b"EFI PART";

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn read_gpt(file: File, sector_size: u64) -> Option<Table> {
    let block = block_size(sector_size)?;
    let disk = GptConfig::new()
        .writable(false)
        .logical_block_size(block)
        .open_from_device(file)
        .ok()?;
    let partitions = disk
        .partitions()
        .iter()
        .filter(|(_, partition)| partition.is_used())
        .filter_map(|(number, partition)| {
            Some(Partition {
                number: *number,
                label: partition.name.clone(),
                kind: partition.part_type_guid.guid,
                start: partition.bytes_start(block).ok()?,
                length: partition.bytes_len(block).ok()?,
            })
        })
        .collect();
    Some(Table {
        partitions,
        needs_repair: disk.primary_header().is_err() || disk.backup_header().is_err(),
    })
}

/// GPTs are laid out in logical sectors; other sizes than these do not exist.
pub(super) fn block_size(sector_size: u64) -> Option<LogicalBlockSize> {
    match sector_size {
        512 => Some(LogicalBlockSize::Lb512),
        4096 => Some(LogicalBlockSize::Lb4096),
        _ => None,
    }
}

/// Whether nothing but sectors of a table as we write it is in this end of the disk: the power went while we wrote it,
/// before there was anything to lose.
fn is_interrupted_table(end: &[u8]) -> bool {
    end.chunks(512).all(|sector| {
        is_zero(sector)
            || sector.starts_with(GPT_MAGIC)
            || is_protective_mbr(sector)
            || holds_only_our_entries(sector)
    })
}

/// No boot code, and one entry of type 0xEE.
fn is_protective_mbr(sector: &[u8]) -> bool {
    sector.len() == 512
        && is_zero(&sector[..440])
        && sector[446 + 4] == 0xEE
        && is_zero(&sector[462..510])
        && sector.ends_with(&[0x55, 0xAA])
}

/// GPT entries are 128 bytes: type GUID, own GUID, first and last sector, flags, then 36 UTF-16 units of name.
fn holds_only_our_entries(sector: &[u8]) -> bool {
    sector.chunks(128).all(|entry| {
        if is_zero(entry) || entry.len() < 128 {
            return is_zero(entry);
        }
        let units: Vec<u16> = entry[56..]
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect();
        let name = String::from_utf16_lossy(&units);
        layout::LAYOUT.iter().any(|spec| {
            spec.label == name.trim_end_matches('\0')
                && spec.kind.guid.to_bytes_le().as_slice() == &entry[..16]
        })
    })
}

fn has_mbr(head: &[u8]) -> bool {
    head.get(510..512) == Some(&[0x55, 0xAA])
}

fn signature(head: &[u8], tail: &[u8]) -> Option<Signature> {
    let at = |offset: usize, magic: &[u8]| {
        head.get(offset..)
            .is_some_and(|rest| rest.starts_with(magic))
    };
    const MD_MAGIC: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
    // md 1.0 keeps its superblock 8 KiB before the end, on a multiple of 4 KiB.
    let md_at_end = tail
        .len()
        .checked_sub(8192)
        .is_some_and(|at| tail[at & !4095..].starts_with(MD_MAGIC));
    let found = [
        (at(0, b"LUKS\xba\xbe"), Signature::Luks),
        (at(0, b"XFSB"), Signature::Xfs),
        (at(0, b"hsqs"), Signature::Squashfs),
        (
            (0..4).any(|sector| at(sector * 512, b"LABELONE")),
            Signature::Lvm,
        ),
        (
            at(0, MD_MAGIC) || at(4096, MD_MAGIC) || md_at_end,
            Signature::MdRaid,
        ),
        (at(0x438, &[0x53, 0xEF]), Signature::Ext),
        (at(0x10040, b"_BHRfS_M"), Signature::Btrfs),
        (at(0x8001, b"CD001"), Signature::Iso9660),
        (at(3, b"NTFS    "), Signature::Ntfs),
        (at(3, b"EXFAT   "), Signature::Exfat),
        (at(4086, b"SWAPSPACE2"), Signature::Swap),
        (
            has_mbr(head) && (at(82, b"FAT32") || at(54, b"FAT1")),
            Signature::Vfat,
        ),
    ];
    found
        .into_iter()
        .find_map(|(is, signature)| is.then_some(signature))
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext => "an ext2/3/4 filesystem",
            Self::Xfs => "an XFS filesystem",
            Self::Btrfs => "a btrfs filesystem",
            Self::Luks => "a LUKS volume",
            Self::Lvm => "an LVM physical volume",
            Self::Squashfs => "a squashfs image",
            Self::Iso9660 => "an ISO 9660 image",
            Self::Vfat => "a FAT filesystem",
            Self::Ntfs => "an NTFS filesystem",
            Self::Exfat => "an exFAT filesystem",
            Self::Swap => "swap space",
            Self::MdRaid => "a member of an md RAID",
        })
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = |table: &Table| {
            let one = |partition: &Partition| match partition.label.as_str() {
                "" => format!("#{}", partition.number),
                label => label.to_owned(),
            };
            table
                .partitions
                .iter()
                .map(one)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match self {
            Self::Blank => f.write_str("nothing"),
            Self::Ours(table) => write!(f, "Instar's partitions ({})", labels(table)),
            Self::ForeignGpt(table) if table.partitions.is_empty() => {
                f.write_str("a GPT without partitions")
            }
            Self::ForeignGpt(table) => write!(f, "a GPT with the partitions {}", labels(table)),
            Self::BrokenGpt => f.write_str("a damaged GPT"),
            Self::Mbr => f.write_str("an MBR partition table or boot sector"),
            Self::Signature(signature) => signature.fmt(f),
            Self::Unknown => f.write_str("data of an unknown kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{os::unix::fs::FileExt, process::Command};

    use super::*;

    const SIZE: u64 = 64 * 1024 * 1024;

    fn disk(writes: &[(u64, &[u8])]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        for (offset, bytes) in writes {
            file.as_file().write_all_at(bytes, *offset).unwrap();
        }
        file
    }

    fn content(writes: &[(u64, &[u8])]) -> Content {
        probe_file(disk(writes).path(), SIZE, 512).unwrap()
    }

    #[test]
    fn blank_is_zero_at_both_ends() {
        assert_eq!(content(&[]), Content::Blank);
        assert_eq!(content(&[(SIZE / 2, b"x")]), Content::Blank);
        assert_eq!(content(&[(0, b"x")]), Content::Unknown);
        assert_eq!(content(&[(SIZE - 1, b"x")]), Content::Unknown);
        let tiny = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(probe_file(tiny.path(), 0, 512).unwrap(), Content::Blank);
    }

    #[test]
    fn signatures_are_recognized() {
        for (offset, magic, signature) in [
            (0, &b"LUKS\xba\xbe"[..], Signature::Luks),
            (0, b"XFSB", Signature::Xfs),
            (0, b"hsqs", Signature::Squashfs),
            (512, b"LABELONE", Signature::Lvm),
            (0x438, b"\x53\xef", Signature::Ext),
            (0x10040, b"_BHRfS_M", Signature::Btrfs),
            (0x8001, b"CD001", Signature::Iso9660),
            (4086, b"SWAPSPACE2", Signature::Swap),
            (4096, b"\xfc\x4e\x2b\xa9", Signature::MdRaid),
            (SIZE - 8192, b"\xfc\x4e\x2b\xa9", Signature::MdRaid),
            (3, b"NTFS    ", Signature::Ntfs),
            (3, b"EXFAT   ", Signature::Exfat),
        ] {
            assert_eq!(
                content(&[(offset, magic)]),
                Content::Signature(signature),
                "{signature}"
            );
        }
        assert_eq!(
            content(&[(82, b"FAT32"), (510, b"\x55\xaa")]),
            Content::Signature(Signature::Vfat)
        );
        assert_eq!(content(&[(446, b"\x80"), (510, b"\x55\xaa")]), Content::Mbr);
    }

    #[test]
    fn damaged_tables_are_not_blank() {
        // A header without entries could be one of ours, interrupted; with anything else on the disk it is not.
        assert_eq!(
            content(&[(512, b"EFI PART"), (2048, b"x")]),
            Content::BrokenGpt
        );
        assert_eq!(
            content(&[(512, b"EFI PART"), (ALIGNED, b"data")]),
            Content::Blank
        );
        assert_eq!(
            content(&[(SIZE - 512, b"EFI PART"), (0, b"boot code")]),
            Content::BrokenGpt
        );
    }

    /// Where the first partition begins: beyond what is looked at.
    const ALIGNED: u64 = END;

    #[test]
    fn foreign_tables_stay_foreign() {
        let file = disk(&[]);
        let made = Command::new("sgdisk")
            .args([
                "-n",
                "1:2048:+8M",
                "-c",
                "1:BOOT",
                "-n",
                "2:0:0",
                "-c",
                "2:EPHEMERAL",
            ])
            .arg(file.path())
            .output()
            .expect("sgdisk of the package gdisk: apt-get install gdisk");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let Content::ForeignGpt(table) = probe_file(file.path(), SIZE, 512).unwrap() else {
            panic!("not foreign")
        };
        assert_eq!(table.partitions.len(), 2);
        assert_eq!(
            probe_file(file.path(), SIZE, 512).unwrap().to_string(),
            "a GPT with the partitions BOOT, EPHEMERAL"
        );
    }

    #[test]
    fn a_missing_device_is_an_error() {
        assert!(
            probe_file(Path::new("/nonexistent"), SIZE, 512)
                .unwrap_err()
                .to_string()
                .contains("/nonexistent")
        );
    }
}
