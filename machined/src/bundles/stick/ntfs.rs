//! The label of NTFS: the attribute `$VOLUME_NAME` of the file `$Volume`, whose record is the fourth one of the master file table.
//!
//! It is read only to tell a person that the stick has the wrong filesystem: NTFS is never mounted. All numbers are a stranger's.

use super::bytes::{Bytes, field, u16_at, u32_at};

/// The number of `$Volume`'s record.
const VOLUME: u64 = 3;
/// The type of the attribute with the label.
const VOLUME_NAME: u32 = 0x60;
/// The type that ends the attributes.
const END: u32 = 0xffff_ffff;
/// Size of the pieces of a record that end with its update sequence number, whatever the size of sectors.
const PIECE: usize = 512;
/// Largest record; real ones have 1 or 4 KiB.
const LARGEST_RECORD: u64 = 64 << 10;

/// The label of NTFS, if it has one.
pub(super) fn label_of_ntfs(bytes: &Bytes<'_>, head: &[u8]) -> Option<String> {
    let sector = u64::from(u16_at(head, 11)?);
    let cluster = sector.checked_mul(count(*head.get(13)?)?)?;
    let table = u64::from_le_bytes(*field(head, 48)?).checked_mul(cluster)?;
    let record = match i8::from_le_bytes([*head.get(64)?]) {
        // The size as a power of two.
        power @ ..0 => 1_u64.checked_shl(u32::from(power.unsigned_abs()))?,
        clusters => cluster.checked_mul(u64::try_from(clusters).ok()?)?,
    };
    if record > LARGEST_RECORD {
        return None;
    }
    let place = table.checked_add(VOLUME * record)?;
    let mut record = bytes(place, usize::try_from(record).ok()?)?;
    if *field::<4>(&record, 0)? != *b"FILE" {
        return None;
    }
    undo_update_sequence(&mut record)?;
    volume_name(&record)
}

/// The number of sectors in a cluster: large ones are given as a negative power of two.
fn count(byte: u8) -> Option<u64> {
    match byte {
        0x80.. => 1_u64.checked_shl(u32::from(byte.wrapping_neg())),
        few => Some(u64::from(few)),
    }
}

/// Puts the bytes back that the update sequence number has replaced at the end of each piece.
fn undo_update_sequence(record: &mut [u8]) -> Option<()> {
    let (place, count) = (
        usize::from(u16_at(record, 4)?),
        usize::from(u16_at(record, 6)?),
    );
    // The first entry is the number itself.
    for piece in 1..count {
        let own = *field::<2>(record, place + 2 * piece)?;
        let end = piece * PIECE;
        record.get_mut(end - 2..end)?.copy_from_slice(&own);
    }
    Some(())
}

fn volume_name(record: &[u8]) -> Option<String> {
    let mut at = usize::from(u16_at(record, 20)?);
    loop {
        let attribute = record.get(at..)?;
        let (kind, length) = (u32_at(attribute, 0)?, u32_at(attribute, 4)?);
        if kind == END || length == 0 {
            return None;
        }
        if kind == VOLUME_NAME {
            // It lies in the record itself: it has at most 32 characters.
            let is_resident = *attribute.get(8)? == 0;
            let length = usize::try_from(u32_at(attribute, 16)?).ok()?;
            let value = attribute.get(usize::from(u16_at(attribute, 20)?)..)?;
            let value = value.get(..length).filter(|_| is_resident)?;
            let characters = value.chunks_exact(2).filter_map(|pair| u16_at(pair, 0));
            let characters: Vec<u16> = characters.collect();
            return Some(String::from_utf16_lossy(&characters));
        }
        at = at.checked_add(usize::try_from(length).ok()?)?;
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const RECORD: usize = 1024;
    /// Cluster 4 of 4 KiB.
    const TABLE: usize = 4 * 8 * 512;
    /// The offset of the label's attribute in the record: the label lies across the end of the first piece.
    const ATTRIBUTE: usize = 472;

    /// A device of NTFS with clusters of 4 KiB and records of 1 KiB, as Windows makes it.
    pub(in crate::bundles::stick) fn ntfs(label: &str) -> Vec<u8> {
        let mut device = vec![0; TABLE + 4 * RECORD];
        device[3..11].copy_from_slice(b"NTFS    ");
        device[11..14].copy_from_slice(&[0, 2, 8]);
        device[48..56].copy_from_slice(&4_u64.to_le_bytes());
        device[64] = 0xf6;
        device[510..512].copy_from_slice(&[0x55, 0xaa]);
        device[TABLE + 3 * RECORD..].copy_from_slice(&volume(label));
        device
    }

    /// The record of `$Volume`: standard information, the label, and the end.
    fn volume(label: &str) -> Vec<u8> {
        let name: Vec<u8> = label.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut record = vec![0; RECORD];
        record[..8].copy_from_slice(b"FILE\x30\0\x03\0");
        record[20] = 56;
        let mut put = |at: usize, bytes: &[u8]| record[at..][..bytes.len()].copy_from_slice(bytes);
        let number = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
        put(56, &number(0x10));
        put(60, &number(ATTRIBUTE - 56));
        let length = (24 + name.len()).next_multiple_of(8);
        put(ATTRIBUTE, &number(0x60));
        put(ATTRIBUTE + 4, &number(length));
        put(ATTRIBUTE + 16, &number(name.len()));
        put(ATTRIBUTE + 20, &[24, 0]);
        put(ATTRIBUTE + 24, &name);
        put(ATTRIBUTE + length, &number(0xffff_ffff));
        // The number of the last update stands at the end of both pieces.
        record[0x30..0x32].copy_from_slice(&[7, 7]);
        for piece in [1, 2] {
            let end: [u8; 2] = *field(&record, piece * PIECE - 2).unwrap();
            record[0x30 + 2 * piece..][..2].copy_from_slice(&end);
            record[piece * PIECE - 2..][..2].copy_from_slice(&[7, 7]);
        }
        record
    }

    fn label(device: &[u8]) -> Option<String> {
        let bytes = |at: u64, length: usize| {
            let rest = device.get(usize::try_from(at).ok()?..)?;
            Some(rest.get(..length).unwrap_or(rest).to_vec())
        };
        label_of_ntfs(&bytes, &device[..4096])
    }

    #[test]
    fn the_name_of_the_volume_is_its_label() {
        for name in ["INSTAR-BUNDLE", "", "Ä stick"] {
            assert_eq!(label(&ntfs(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn records_of_whole_clusters_and_large_clusters_are_found() {
        let mut device = ntfs("INSTAR-BUNDLE");
        // A cluster is a record: two sectors, and the table begins at cluster 16.
        device[13] = 2;
        device[48..56].copy_from_slice(&16_u64.to_le_bytes());
        device[64] = 1;
        assert_eq!(label(&device).as_deref(), Some("INSTAR-BUNDLE"));
        // 2^3 sectors, written as a negative power.
        let mut device = ntfs("INSTAR-BUNDLE");
        device[13] = 0xfd;
        assert_eq!(label(&device).as_deref(), Some("INSTAR-BUNDLE"));
    }

    /// Every byte of the boot sector's numbers and of the record, with values that lead far away.
    #[test]
    fn a_damaged_volume_is_read_to_no_label_or_another_and_no_further() {
        let places = (11..80).chain(TABLE + 3 * RECORD..TABLE + 4 * RECORD);
        for place in places {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut device = ntfs("INSTAR-BUNDLE");
                device[place] = byte;
                let read = label(&device);
                assert!(read.is_none_or(|it| it.len() < 4096), "{place} {byte}");
            }
        }
        let mut cut_off = ntfs("INSTAR-BUNDLE");
        cut_off.truncate(TABLE + 3 * RECORD + 100);
        assert_eq!(label(&cut_off), None);
    }
}
