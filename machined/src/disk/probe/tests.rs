#![allow(clippy::unwrap_used, clippy::panic)]
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
    // A header without entries could be an interrupted write of ours, but not if the disk holds anything else.
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

/// Start of the first partition: beyond the part of the disk that a probe reads.
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
