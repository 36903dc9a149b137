//! The label in the root directory of FAT and exFAT. Windows writes it there alone: the boot sector then says `NO NAME`.
//!
//! Only the first cluster is read, where the label is, as it is written when a filesystem is made. All numbers are a stranger's.

use super::bytes::{Bytes, field, u16_at, u32_at};

/// Size of an entry of a directory.
const ENTRY: usize = 32;
/// The most that is read of a directory.
const LONGEST: u64 = 64 << 10;

/// The label of FAT, without the spaces at its end.
pub(super) fn label_of_fat(bytes: &Bytes<'_>, head: &[u8]) -> Option<String> {
    let sector = u64::from(u16_at(head, 11)?);
    let cluster = u64::from(*head.get(13)?) * sector;
    let (reserved, tables) = (u64::from(u16_at(head, 14)?), u64::from(*head.get(16)?));
    let (entries, table) = (u64::from(u16_at(head, 17)?), u64::from(u16_at(head, 22)?));
    let (start, length) = match table {
        // FAT32: the directory is in clusters, the first of which has the number 2.
        0 => {
            let table = u64::from(u32_at(head, 36)?);
            let number = u64::from(u32_at(head, 44)?).checked_sub(2)?;
            let clusters = reserved + tables * table;
            (clusters * sector + number * cluster, cluster)
        }
        // FAT12 and FAT16: it follows the tables.
        table => ((reserved + tables * table) * sector, entries * ENTRY as u64),
    };
    let directory = bytes(start, usize::try_from(length.min(LONGEST)).ok()?)?;
    let entries = directory.chunks_exact(ENTRY);
    // The first entry without a name is the end.
    let mut entries = entries.take_while(|entry| entry.first() != Some(&0));
    entries.find_map(|entry| {
        let (name, attributes) = (field::<11>(entry, 0)?, entry.get(11)?);
        // Volume, and not one of the four bits of a part of a long name; 0xe5: it was deleted.
        let is_label = attributes & 0x1f == 0x08 && name.first() != Some(&0xe5);
        is_label.then(|| String::from_utf8_lossy(name).trim_end().to_owned())
    })
}

/// The label of exFAT.
pub(super) fn label_of_exfat(bytes: &Bytes<'_>, head: &[u8]) -> Option<String> {
    let sector = 1_u64.checked_shl(u32::from(*head.get(108)?))?;
    let cluster = sector.checked_mul(1_u64.checked_shl(u32::from(*head.get(109)?))?)?;
    let clusters = u64::from(u32_at(head, 88)?).checked_mul(sector)?;
    let number = u64::from(u32_at(head, 96)?).checked_sub(2)?;
    let start = number.checked_mul(cluster)?.checked_add(clusters)?;
    let directory = bytes(start, usize::try_from(cluster.min(LONGEST)).ok()?)?;
    // 0: the end. 0x83: the label, its number of characters, and these.
    let mut entries = directory
        .chunks_exact(ENTRY)
        .take_while(|entry| entry.first() != Some(&0));
    let entry = entries.find(|entry| entry.first() == Some(&0x83))?;
    let length = usize::from(*entry.get(1)?);
    let characters = entry.get(2..2 + 2 * length)?.chunks_exact(2);
    let characters: Vec<u16> = characters.filter_map(|pair| u16_at(pair, 0)).collect();
    Some(String::from_utf16_lossy(&characters))
}
