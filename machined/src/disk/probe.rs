//! Recognizes the contents of a disk, by reading only.

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io::{self, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use gpt::disk::LogicalBlockSize;
use serde::Serialize;

use super::{
    discover::Disk,
    layout::Label,
    table::{self, MAGIC, Partition, Table, read_at},
};
use crate::sys;

/// Bytes at each end of a disk that are read; every signature below and both GPTs lie in them.
pub(super) const END: u64 = 1024 * 1024;

/// The contents of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Both ends are zero, or hold nothing but the beginning of our own partition table (a power cut while it was made).
    Blank,
    /// A GPT with Instar's partitions and no others.
    Ours(Table),
    /// A GPT with other partitions, or with none.
    ForeignGpt(Table),
    /// A GPT of which neither copy is whole.
    BrokenGpt,
    /// An MBR partition table.
    Mbr,
    /// A filesystem or a volume right on the disk.
    Signature(Signature),
    /// Data of an unknown format.
    Unknown,
}

/// A format that is recognized without a partition table.
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

impl ProbeError {
    pub(super) fn of(path: &Path, source: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            source,
        }
    }
}

impl Content {
    /// Returns whether a partition table or filesystem may be made without asking.
    pub fn is_blank(&self) -> bool {
        matches!(self, Self::Blank)
    }
}

/// Reads both ends of a disk and returns its contents. Opens it for reading only.
pub fn probe(disk: &Disk) -> Result<Content, ProbeError> {
    probe_file(disk.dev_path.as_path(), disk.size, disk.sector_size)
}

/// Like [`probe`], for a disk by its path; also returns the size of its logical sectors.
pub(super) fn probe_device(path: &Path) -> Result<(Content, u64), ProbeError> {
    let failed = |source| ProbeError {
        path: path.to_owned(),
        source,
    };
    let mut disk = File::open(path).map_err(failed)?;
    let size = disk.seek(SeekFrom::End(0)).map_err(failed)?;
    let sector = sys::block::logical_sector(&disk).map_err(failed)?;
    Ok((probe_file(path, size, sector)?, sector))
}

/// Like [`probe`], for a file or device of `size` bytes.
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
        .is_some_and(|rest| rest.starts_with(MAGIC))
        || tail
            .len()
            .checked_sub(sector)
            .is_some_and(|at| tail[at..].starts_with(MAGIC));
    let table = match has_gpt && block_size(sector_size).is_some() {
        true => table::read(&mut file, size, sector_size).map_err(failed)?,
        false => None,
    };
    if let Some(table) = table {
        let labels = table
            .partitions
            .iter()
            .map(|partition| Label::of(&partition.label, &partition.kind));
        let labels: Option<Vec<Label>> = labels.collect();
        let ours = labels.is_some_and(|labels| {
            let each_once = labels.iter().collect::<BTreeSet<_>>().len() == labels.len();
            // Other systems have partitions with the name EFI as well, so that name alone does not make the disk ours.
            each_once && labels.iter().any(|label| *label != Label::Efi)
        });
        return Ok(if ours {
            Content::Ours(table)
        } else {
            Content::ForeignGpt(table)
        });
    }
    if is_interrupted_table(&head) && is_interrupted_table(&tail) {
        // A foreign first partition would begin in the next MiB, so that must be empty too.
        let beyond = read_at(&mut file, END, END).map_err(failed)?;
        if signature(&beyond, &[]).is_none() {
            return Ok(Content::Blank);
        }
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

/// Returns the signature at the start of a partition, if the format is known.
pub fn probe_partition(path: &Path) -> Result<Option<Signature>, ProbeError> {
    let failed = |source| ProbeError::of(path, source);
    let mut file = File::open(path).map_err(failed)?;
    let head = read_at(&mut file, 0, END).map_err(failed)?;
    Ok(signature(&head, &[]))
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Converts a sector size: a GPT is laid out in logical sectors, and no other sizes exist.
pub(super) fn block_size(sector_size: u64) -> Option<LogicalBlockSize> {
    match sector_size {
        512 => Some(LogicalBlockSize::Lb512),
        4096 => Some(LogicalBlockSize::Lb4096),
        _ => None,
    }
}

/// Returns whether this end of the disk holds nothing but sectors of a table as we write it: the power went while we wrote it,
/// before the disk held any data.
fn is_interrupted_table(end: &[u8]) -> bool {
    end.chunks(512).all(|sector| {
        is_zero(sector)
            || sector.starts_with(MAGIC)
            || is_protective_mbr(sector)
            || holds_only_our_entries(sector)
    })
}

/// Returns whether the MBR has no boot code and one entry, of type 0xEE.
fn is_protective_mbr(sector: &[u8]) -> bool {
    sector.len() == 512
        && is_zero(&sector[..440])
        && sector[446 + 4] == 0xEE
        && is_zero(&sector[462..510])
        && sector.ends_with(&[0x55, 0xAA])
}

/// Returns whether all entries are unused or have a name and type of the layout.
fn holds_only_our_entries(sector: &[u8]) -> bool {
    sector.chunks(128).all(|entry| {
        let is_ours = || {
            let kind = entry.get(..16).and_then(|kind| kind.try_into().ok());
            kind.is_some_and(|kind| {
                Label::of(&table::label(entry), &uuid::Uuid::from_bytes_le(kind)).is_some()
            })
        };
        is_zero(entry) || is_ours()
    })
}

fn has_mbr(head: &[u8]) -> bool {
    head.get(510..512) == Some(&[0x55, 0xAA])
}

pub(super) fn signature(head: &[u8], tail: &[u8]) -> Option<Signature> {
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
mod tests;
